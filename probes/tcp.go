package probes

import (
	"context"
	"net"
	"net/netip"
	"strings"
)

// dial connects to the check's address. The connection has the context's deadline.
func dial(ctx context.Context, network string, c Check) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1}
	conn, err := d.DialContext(ctx, network, netip.AddrPortFrom(c.Addr, c.Port).String())
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

// checkTCP connects, sends what is to be sent, and reads until the expected answer has come.
func checkTCP(ctx context.Context, c Check) Outcome {
	conn, err := dial(ctx, "tcp", c)
	if err != nil {
		return failure(err, c, false)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if c.Send != "" {
		if _, err := conn.Write([]byte(c.Send)); err != nil {
			return failure(err, c, true)
		}
	}
	if c.Expect == "" {
		return Outcome{OK: true}
	}
	answer := make([]byte, 0, 1024)
	for len(answer) < maxAnswer {
		if len(answer) == cap(answer) {
			answer = append(answer, 0)[:len(answer)]
		}
		n, err := conn.Read(answer[len(answer):cap(answer)])
		answer = answer[:len(answer)+n]
		if strings.Contains(string(answer), c.Expect) {
			return Outcome{OK: true}
		}
		if err != nil && len(answer) == 0 {
			return failure(err, c, true)
		}
		if err != nil {
			break
		}
	}
	return Outcome{Err: "answer does not match"}
}
