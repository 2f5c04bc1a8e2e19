//go:build linux

package lab

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// What is set on a link is what a ping sees, in each direction for itself.
func TestNetwork(t *testing.T) {
	t.Parallel()
	n := New(t)
	a := n.Host("a", "east", "10.0.0.1", "fd00::1")
	b := n.Host("b", "west", "10.0.0.2", "fd00::2")
	n.SetOneWay("east", "west", Link{Delay: 30 * time.Millisecond})
	n.SetOneWay("west", "east", Link{Delay: 70 * time.Millisecond})
	for _, to := range []string{"10.0.0.2", "fd00::2"} {
		out := a.Must("ping", "-c", "3", "-i", "0.2", to)
		if !strings.Contains(out, "time=10") {
			t.Errorf("ping does not take 100 ms:\n%s", out)
		}
	}
	n.Change("a", "b", func(l *Link) { l.DropICMP = true })
	if out, err := a.Run("ping", "-c", "1", "-W", "1", "10.0.0.2"); err == nil {
		t.Errorf("ping is answered although ICMP is dropped:\n%s", out)
	}
	b.Serve("10.0.0.2:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	if out := a.Must("curl", "-sS", "-m", "2", "http://10.0.0.2/"); out != "hello" {
		t.Errorf("curl gets %q", out)
	}
	n.Change("a", "b", func(l *Link) { l.Cut = true })
	if out, err := a.Run("curl", "-sS", "-m", "2", "http://10.0.0.2/"); err == nil {
		t.Errorf("the link is cut, and curl gets\n%s", out)
	}
}
