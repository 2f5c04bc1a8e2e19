package dns

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"gslbd/state"
)

// NewSignedResponder returns a Responder, beside which runs what a server runs beside its sockets for signed zones, until
// stop is called.
func NewSignedResponder(t testing.TB, store *state.Store, log *zap.Logger) (r *Responder, stop func()) {
	r, err := NewResponder(Options{Store: store, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	r.Refresh(time.Now())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.signer.run(ctx, store)
	}()
	return r, func() {
		cancel()
		<-ended
	}
}

// SignaturesMade returns how many signatures r has made, and how many it has refused to.
func SignaturesMade(r *Responder) (made, limited uint64) {
	return r.count.signatures[signMade].Load(), r.count.signatures[signLimited].Load()
}

// TestSuccessor checks names whose successor is not simply a child, as RFC 4471 section 3.1.2 has them.
func TestSuccessor(t *testing.T) {
	label := func(n int, c byte) string { return string(append([]byte{byte(n)}, bytes.Repeat([]byte{c}, n)...)) }
	const apex = "\x04gslb\x04test\x00"
	long := label(63, 'a') + label(63, 'a') + label(63, 'a') // with apex 203 octets
	for _, tt := range []struct{ name, want string }{
		{"\x01a" + apex, "\x01\x00\x01a" + apex},
		{label(49, 'a') + long + apex, "\x01\x00" + label(49, 'a') + long + apex}, // 253 octets
		{label(50, 'a') + long + apex, "\x33" + strings.Repeat("a", 50) + "\x00" + long + apex},
		{label(51, 'a') + long + apex, "\x33" + strings.Repeat("a", 50) + "b" + long + apex},
		{"\x33" + strings.Repeat("a", 50) + "@" + long + apex, "\x33" + strings.Repeat("a", 50) + "[" + long + apex},
		{"\x33" + strings.Repeat("a", 50) + "\xff" + long + apex, "\x32" + strings.Repeat("a", 49) + "b" + long + apex},
	} {
		if got := appendSuccessor(nil, []byte(tt.name), 2); string(got) != tt.want {
			t.Errorf("%q:\n got %q\nwant %q", tt.name, got, tt.want)
		}
	}
	name := label(51, 0xff) + long + apex
	if got, want := string(appendSuccessor(nil, []byte(name), 2)), "\x3f"+strings.Repeat("a", 62)+"b"+label(63, 'a')+label(63, 'a')+apex; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	name = label(51, 0xff) + label(63, 0xff) + label(63, 0xff) + label(63, 0xff) + apex
	if got := string(appendSuccessor(nil, []byte(name), 2)); got != apex {
		t.Errorf("after the last name: %q", got)
	}
}
