package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/dnstap/golang-dnstap"
	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/protobuf/proto"

	"gslbd/state"
)

const (
	// longestFrame is the longest message of dnstap that is read, with a query and a reply; longer ones are left out.
	longestFrame = 256 << 10
	// optionECS is the EDNS option that carries a client subnet (RFC 7871, section 6).
	optionECS = 8
)

// readDnstap reads the queries that a server was asked out of a file of dnstap (dnstap.info): those of the types AUTH_QUERY and
// CLIENT_QUERY; where there are none, those of AUTH_RESPONSE and CLIENT_RESPONSE, which is what gslbd writes. A file that ends
// in the middle of a message is read up to there: it may still be written.
func (a *asking) readDnstap(path string, file io.Reader) error {
	frames, err := dnstap.NewReader(file, nil)
	if err != nil {
		return usageError{fmt.Errorf("%s begins like a file of dnstap and is none: %w", path, err)}
	}
	messages := dnstap.NewDecoder(frames, longestFrame)
	asked := false // there are queries, of which the responses would be a second time
	for {
		var d dnstap.Dnstap
		switch err := messages.Decode(&d); {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case errors.Is(err, proto.Error):
			a.unreadable++
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", path, err)
		}
		m := d.GetMessage()
		wire := m.GetQueryMessage()
		switch m.GetType() {
		case dnstap.Message_AUTH_QUERY, dnstap.Message_CLIENT_QUERY:
			if !asked {
				asked, a.log, a.skipped, a.unreadable = true, nil, 0, 0
			}
		case dnstap.Message_AUTH_RESPONSE, dnstap.Message_CLIENT_RESPONSE:
			if asked {
				continue
			}
			if len(wire) == 0 { // some tell only the reply, which repeats the question
				wire = m.GetResponseMessage()
			}
		default:
			continue
		}
		if err := a.message(wire, m.GetQueryAddress()); err != nil {
			return usageError{fmt.Errorf("%s: %w", path, err)}
		}
	}
}

// message reads one DNS message that came from an address, which is empty where the log does not tell.
func (a *asking) message(wire, from []byte) error {
	q, subnet, err := question(wire)
	if err != nil {
		a.unreadable++
		return nil
	}
	client := state.Client{ECS: subnet}
	if addr, ok := netip.AddrFromSlice(from); ok {
		client.LDNS = addr.Unmap()
	}
	name := a.name(q.Name.Data[:q.Name.Length])
	switch {
	case q.Class != dnsmessage.ClassINET:
		a.skipped++
		return nil
	case q.Type == dnsmessage.TypeA:
		return a.add(name, state.V4, client)
	case q.Type == dnsmessage.TypeAAAA:
		return a.add(name, state.V6, client)
	}
	a.skipped++
	return nil
}

// question returns what a message asks, and its client subnet; the zero Prefix: it has none, or one of no length.
func question(wire []byte) (dnsmessage.Question, netip.Prefix, error) {
	var p dnsmessage.Parser
	h, err := p.Start(wire)
	if err == nil && h.OpCode != 0 {
		err = errors.New("it is no query")
	}
	if err != nil {
		return dnsmessage.Question{}, netip.Prefix{}, err
	}
	q, err := p.Question()
	err = errors.Join(err, p.SkipAllQuestions(), p.SkipAllAnswers(), p.SkipAllAuthorities())
	for err == nil {
		var rr dnsmessage.ResourceHeader
		if rr, err = p.AdditionalHeader(); errors.Is(err, dnsmessage.ErrSectionDone) {
			return q, netip.Prefix{}, nil
		}
		if err != nil {
			break
		}
		if rr.Type != dnsmessage.TypeOPT {
			err = p.SkipAdditional()
			continue
		}
		var opt dnsmessage.OPTResource
		if opt, err = p.OPTResource(); err != nil {
			break
		}
		for _, o := range opt.Options {
			if o.Code == optionECS {
				subnet, err := clientSubnet(o.Data)
				return q, subnet, err
			}
		}
	}
	return dnsmessage.Question{}, netip.Prefix{}, err
}

// clientSubnet reads the option of a query or of a reply, which differ in the scope only.
func clientSubnet(data []byte) (netip.Prefix, error) {
	if len(data) < 4 {
		return netip.Prefix{}, errors.New("its client subnet is cut off")
	}
	var addr netip.Addr
	switch octets := data[4:]; binary.BigEndian.Uint16(data) {
	case 1:
		var a [4]byte
		copy(a[:], octets)
		addr = netip.AddrFrom4(a)
	case 2:
		var a [16]byte
		copy(a[:], octets)
		addr = netip.AddrFrom16(a)
	}
	subnet, err := addr.Prefix(int(data[2]))
	if err != nil || subnet.Bits() == 0 {
		return netip.Prefix{}, err
	}
	if !subnet.IsValid() || len(data[4:]) > (subnet.Bits()+7)/8 || subnet.Addr() != addr {
		return netip.Prefix{}, errors.New("its client subnet is not what RFC 7871 says")
	}
	return subnet, nil
}
