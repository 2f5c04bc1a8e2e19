package control

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestDecodeRecord(t *testing.T) {
	o := orderTo(Down, Target{Site: "seoul"})
	good := string(Record{Order: &o}.encode())
	if r, err := decodeRecord([]byte(strings.Replace(good, `"action"`, `"later":1,"action"`, 1))); err != nil || !same(r, Record{Order: &o}) {
		t.Errorf("a field of a later version: %v", err)
	}
	for name, tt := range map[string]struct{ in, says string }{
		"nothing":       {``, "JSON"},
		"half":          {good[:len(good)/2], "JSON"},
		"null":          {`null`, "of no kind"},
		"later kind":    {`{"promise":{"id":"x"}}`, "of no kind"},
		"two kinds":     {`{"latch":{},` + good[1:], "several kinds"},
		"wrong type":    {`{"order":{"id":1}}`, "JSON"},
		"bad action":    {strings.Replace(good, `"down"`, `"off"`, 1), "off"},
		"too long":      {`"` + strings.Repeat("x", maxRecord) + `"`, "bytes, of at most"},
		"falling stage": {`{"evacuation":{"id":"` + newID() + `","created":"2026-01-01T00:00:00Z","author":"a","reason":"b","zone":"z","types":["member"],"stages":[0.5,0.2]}}`, "stages must rise"},
		"no last stage": {`{"evacuation":{"id":"` + newID() + `","created":"2026-01-01T00:00:00Z","author":"a","reason":"b","zone":"z","types":["member"],"stages":[0.2,0.5]}}`, "last stage must be 1"},
		"type twice":    {`{"evacuation":{"id":"` + newID() + `","created":"2026-01-01T00:00:00Z","author":"a","reason":"b","zone":"z","types":["exec","exec"]}}`, "given twice"},
		"foreign line":  {`{"taken":{"id":"x/member/y","evacuation":"` + newID() + `","type":"member","created":"2026-01-01T00:00:00Z"}}`, "does not begin with"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decodeRecord([]byte(tt.in))
			expectError(t, err, ErrInvalid, tt.says)
		})
	}
}

// TestMerge shows that it does not matter which of two records of one id came first.
func TestMerge(t *testing.T) {
	now := time.Now().UTC()
	one := Record{Failback: &Failback{ID: "x", Created: now, Latches: []string{"b", "a"}}}
	two := Record{Failback: &Failback{ID: "x", Created: now, Latches: []string{"c", "a"}}}
	for _, m := range []Record{merge(one, two), merge(two, one)} {
		if got := strings.Join(m.Failback.Latches, ""); got != "abc" {
			t.Error(got)
		}
	}
	early := Record{Tombstone: &Tombstone{ID: "x", Created: now, Author: "z"}}
	late := Record{Tombstone: &Tombstone{ID: "x", Created: now.Add(time.Second), Author: "a"}}
	if !same(merge(early, late), early) || !same(merge(late, early), early) {
		t.Error("the older tombstone does not stay")
	}
}

func FuzzDecodeRecord(f *testing.F) {
	o := orderTo(Down, Target{Member: "www.example.com/seo*"})
	f.Add(Record{Order: &o}.encode())
	f.Add([]byte(`{"failback":{"id":"0198f5a0-aaaa-7bbb-8ccc-ddddeeeeffff","created":"2026-01-01T00:00:00Z","author":"a","service":"s","latches":["x"]}}`))
	f.Add([]byte(`{"evacuation":{"id":"0198f5a0-aaaa-7bbb-8ccc-ddddeeeeffff","created":"2026-01-01T00:00:00+09:00","author":"a","reason":"b","zone":"z","types":["member"],"stages":[0.5,1]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		enc := r.encode()
		again, err := decodeRecord(enc)
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v\n%s", err, enc)
		}
		if !bytes.Equal(enc, again.encode()) {
			t.Fatalf("it changed:\n%s\n%s", enc, again.encode())
		}
		if back, err := unseal(seal(r)); err != nil || !same(back, r) {
			t.Fatal(err)
		}
		s := newSet()
		s.add(r)
		s.purgeable(time.Now())
		s.latchesInForce()
	})
}
