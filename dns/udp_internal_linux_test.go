package dns

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Where there is no room for replies, a worker waits for it, and a stop waits no longer than the drain time in all.
func TestSendWithoutRoom(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // it has room for few
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	w := &udpWorker{fd: ends[0], responder: &Responder{count: &counters{}}, drainTime: time.Hour}
	for i := range w.out {
		w.outVec[i].Base = &w.replies[i][0]
		w.outVec[i].SetLen(100)
		w.out[i].hdr.Iov = &w.outVec[i]
		w.out[i].hdr.SetIovlen(1)
	}
	dropped := &w.responder.count.dropped[dropSend]

	w.until = time.Now() // it is to stop, and has had its time
	sent := uint64(0)
	for w.queued = batch; dropped.Load() == 0; sent += batch {
		w.send()
	}
	sent -= dropped.Load()

	w.until, w.queued = time.Time{}, batch // it serves
	go w.send()
	var b [1232]byte
	for range sent + batch {
		if n, err := unix.Read(ends[1], b[:]); n != 100 || err != nil {
			t.Fatalf("%d octets, %v", n, err)
		}
	}
}
