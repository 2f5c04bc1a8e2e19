package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dnstap/golang-dnstap"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"gslbd/policy"
)

const (
	// tapSlots is how many messages wait to be written. What finds no room is dropped, and counted.
	tapSlots = 4096
	// maxTapped is the longest query or reply that is told of, in octets; of longer ones only the rest is. It bounds the
	// memory of what waits to 32 MiB.
	maxTapped = 4096
	// tapRetry is the time between two attempts to reach a collector, and tapPatience how long it may take to read.
	tapRetry    = 5 * time.Second
	tapPatience = 5 * time.Second
)

// TapOptions say where messages of dnstap (dnstap.info) go: to a file or to a collector's socket. The zero value: nowhere.
type TapOptions struct {
	File     string  // written anew; the one before is renamed to end in .1
	Socket   string  // the absolute path of a unix socket, or HOST:PORT
	Share    float64 // of the queries, 0 to 1
	Identity string  // of this server
	Version  string
}

// A tap tells of queries and replies. Workers hand it copies in slots that are made once and go round, so that it holds up
// none of them and grows without none.
type tap struct {
	opts    TapOptions
	log     *zap.Logger
	file    *os.File // nil: it goes to a socket
	free    chan *tapped
	queue   chan *tapped // has room for all slots
	written atomic.Uint64
	dropped atomic.Uint64
}

// A tapped is one query and its reply.
type tapped struct {
	at            time.Time
	local, remote netip.AddrPort
	transport     int
	query, reply  []byte
	service       string
	member        string
	reason        policy.Reason
	ecs           netip.Prefix
	scope         uint8
}

// newTap returns nil where nothing is told.
func newTap(o TapOptions, log *zap.Logger) (*tap, error) {
	if o.File == "" && o.Socket == "" || o.Share == 0 {
		return nil, nil
	}
	t := &tap{opts: o, log: log, free: make(chan *tapped, tapSlots), queue: make(chan *tapped, tapSlots)}
	for range tapSlots {
		t.free <- new(tapped)
	}
	if o.File == "" {
		return t, nil
	}
	if err := os.Rename(o.File, o.File+".1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("dns: dnstap.file: %w", err)
	}
	var err error
	if t.file, err = os.OpenFile(o.File, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640); err != nil {
		return nil, fmt.Errorf("dns: dnstap.file: %w", err)
	}
	return t, nil
}

// note tells of the query that r has just answered. Hot path where dnstap is on: it copies both messages, and takes a slot
// from a channel and hands it to another; where it is off nobody calls it.
func (t *tap) note(r *Responder, query, reply []byte, local, remote netip.AddrPort, tcp bool) {
	var m *tapped
	select {
	case m = <-t.free:
	default:
		t.dropped.Add(1)
		return
	}
	m.at, m.local, m.remote, m.transport = r.now, local, remote, r.transport(tcp)
	m.query, m.reply = m.query[:0], m.reply[:0]
	if len(query) <= maxTapped {
		m.query = append(m.query, query...)
	}
	if len(reply) <= maxTapped {
		m.reply = append(m.reply, reply...)
	}
	m.service, m.member, m.ecs = "", "", netip.Prefix{}
	if svc := r.service; svc != nil {
		m.service, m.reason = svc.Name, r.decided.Reason
		if r.decided.Kind == policy.Answer && r.decided.N > 0 {
			m.member = r.decided.Members[0].Name
		}
	}
	if r.echoECS {
		m.ecs, m.scope = r.q.ecs.prefix, r.scope
	}
	t.queue <- m
}

// run writes what is noted until ctx is done, and then what is left.
func (t *tap) run(ctx context.Context) {
	failing := false
	for {
		w, err := t.open(ctx)
		if err == nil {
			if failing {
				t.log.Info("dnstap is written again")
			}
			failing = false
			if err = t.copy(ctx, w); err == nil {
				return
			}
		}
		if t.file != nil {
			t.log.Error("dnstap file cannot be written; nothing more is told until a restart", zap.String("file", t.opts.File), zap.Error(err))
			<-ctx.Done()
			return
		}
		if !failing && ctx.Err() == nil {
			t.log.Error("dnstap collector not reached; trying again", zap.String("socket", t.opts.Socket), zap.Error(err))
		}
		failing = true
		select {
		case <-ctx.Done():
			return
		case <-time.After(tapRetry):
		}
	}
}

// A frames is what a dnstap.Writer of the library is.
type frames interface {
	dnstap.Writer
	Flush() error
}

// open begins the file or a connection.
func (t *tap) open(ctx context.Context) (frames, error) {
	var w dnstap.Writer
	var err error
	if t.file != nil {
		w, err = dnstap.NewWriter(t.file, nil)
	} else {
		network := "tcp"
		if filepath.IsAbs(t.opts.Socket) {
			network = "unix"
		}
		var conn net.Conn
		if conn, err = (&net.Dialer{Timeout: tapPatience}).DialContext(ctx, network, t.opts.Socket); err != nil {
			return nil, err
		}
		if w, err = dnstap.NewWriter(conn, &dnstap.WriterOptions{Bidirectional: true, Timeout: tapPatience}); err != nil {
			conn.Close()
			return nil, err
		}
		w = socketFrames{w.(frames), conn}
	}
	if err != nil {
		return nil, err
	}
	return w.(frames), nil
}

// A socketFrames closes its connection as well.
type socketFrames struct {
	frames
	conn net.Conn
}

func (s socketFrames) Close() error { return errors.Join(s.frames.Close(), s.conn.Close()) }

// copy writes what is noted. It returns nil when ctx is done and all is written.
func (t *tap) copy(ctx context.Context, w frames) error {
	for {
		var m *tapped
		select {
		case m = <-t.queue:
		default:
			if err := w.Flush(); err != nil {
				_ = w.Close() // it failed already
				return err
			}
			select {
			case m = <-t.queue:
			case <-ctx.Done():
				if len(t.queue) == 0 {
					if err := w.Close(); err != nil {
						t.log.Warn("dnstap not ended well", zap.Error(err))
					}
					return nil
				}
				continue
			}
		}
		frame, err := proto.Marshal(t.message(m))
		t.free <- m
		if err == nil {
			_, err = w.WriteFrame(frame)
		}
		if err != nil {
			t.dropped.Add(1)
			_ = w.Close()
			return err
		}
		t.written.Add(1)
	}
}

// message makes what dnstap has of a query.
func (t *tap) message(m *tapped) *dnstap.Dnstap {
	kind, family := dnstap.Message_AUTH_RESPONSE, dnstap.SocketFamily_INET
	if m.remote.Addr().Unmap().Is6() {
		family = dnstap.SocketFamily_INET6
	}
	protocol := [transports]dnstap.SocketProtocol{dnstap.SocketProtocol_UDP, dnstap.SocketProtocol_TCP, dnstap.SocketProtocol_DOT}[m.transport]
	sec, nsec := uint64(m.at.Unix()), uint32(m.at.Nanosecond())
	qport, rport := uint32(m.remote.Port()), uint32(m.local.Port())
	msg := &dnstap.Message{
		Type: &kind, SocketFamily: &family, SocketProtocol: &protocol,
		QueryAddress: m.remote.Addr().Unmap().AsSlice(), QueryPort: &qport,
		ResponseAddress: m.local.Addr().Unmap().AsSlice(), ResponsePort: &rport,
		QueryTimeSec: &sec, QueryTimeNsec: &nsec, ResponseTimeSec: &sec, ResponseTimeNsec: &nsec,
	}
	if len(m.query) > 0 {
		msg.QueryMessage = m.query
	}
	if len(m.reply) > 0 {
		msg.ResponseMessage = m.reply
	}
	whole := dnstap.Dnstap_MESSAGE
	return &dnstap.Dnstap{
		Type: &whole, Message: msg, Extra: []byte(m.extra()), Identity: []byte(t.opts.Identity), Version: []byte(t.opts.Version),
	}
}

// extra is the decision, as words and values; "" where none was made.
func (m *tapped) extra() string {
	if m.service == "" {
		return ""
	}
	words := []string{"service=" + m.service, "reason=" + m.reason.String()}
	if m.member != "" {
		words = append(words, "member="+m.member)
	}
	if m.ecs.IsValid() {
		words = append(words, fmt.Sprintf("ecs=%s scope=%d", m.ecs, m.scope))
	}
	return strings.Join(words, " ")
}

// tapSampled decides by chance whether the present query is told of.
func (r *Responder) tapSampled() bool {
	return r.tap.opts.Share >= 1 || float64(r.rand.Uint64()>>11) < r.tap.opts.Share*(1<<53)
}

// collect sends what is counted to a scrape.
func (t *tap) collect(ch chan<- prometheus.Metric) {
	desc := tapDesc()
	ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(t.written.Load()), "written")
	ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(t.dropped.Load()), "dropped")
}

func tapDesc() *prometheus.Desc {
	return prometheus.NewDesc("gslbd_dnstap_messages_total", "Messages of dnstap, by what became of them.", []string{"result"}, nil)
}
