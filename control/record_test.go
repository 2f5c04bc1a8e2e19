package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
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

// What was given under one id to gslbd that are cut off from each other is all in force when they meet.
func TestOneIDTwice(t *testing.T) {
	now := time.Now().UTC()
	dirs := [2]string{t.TempDir(), t.TempDir()}
	a, b := openControl(t, dirs[0]), openControl(t, dirs[1])
	ctx := context.Background()
	// An order for different sites.
	one, two := orderTo(Down, Target{Site: "seoul"}), orderTo(Drain, Target{Site: "busan"})
	two.ID = one.ID
	mustForce(t, a, one)
	mustForce(t, b, two)
	// An evacuation of which one gslbd has a type already, and another of different zones.
	mustEvacuate(t, a, evacuationOf("use1-az1", TypeMember))
	types := evacuationOf("use1-az1", TypeMember, TypeAgent)
	mustEvacuate(t, a, types)
	mustEvacuate(t, b, types)
	zones := evacuationOf("apne2-az1", TypeAgent)
	mustEvacuate(t, a, zones)
	other := zones
	other.Zone, other.Expires = "apne2-az2", now.Add(time.Hour)
	other.Force = true
	mustEvacuate(t, b, other)
	for range 2 {
		b.arrived(slices.Collect(a.set.Load().all()))
		a.arrived(slices.Collect(b.set.Load().all()))
	}
	for i, c := range []*Control{a, b} {
		if got := forced(c.opts.Store, "www.example.com"); got != "down drain evacuated" {
			t.Errorf("%d: forced are %s", i, got)
		}
		if n := len(c.Orders()); n != 2 {
			t.Errorf("%d: %d orders", i, n)
		}
		var got []string
		for _, e := range c.Evacuations() {
			got = append(got, fmt.Sprintf("%s %s %t", e.Zone, e.Types, e.Expires.IsZero()))
		}
		slices.Sort(got)
		if want := "apne2-az1 [agent] true, apne2-az2 [agent] true, use1-az1 [member agent] true, use1-az1 [member] true"; strings.Join(got, ", ") != want {
			t.Errorf("%d: %s", i, got)
		}
		// What was given may be given again, and nothing else under that id.
		for _, o := range []Order{one, two} {
			if r := mustForce(t, c, o); !r.Repeated {
				t.Errorf("%d: %+v", i, r)
			}
		}
		third := one
		third.Action = Up
		_, err := c.Force(ctx, third, Caller{})
		expectError(t, err, ErrRefused, "another content")
		third.ID, third.Also = newID(), []Order{one}
		_, err = c.Force(ctx, third, Caller{})
		expectError(t, err, ErrInvalid, "also")
		for _, e := range []EvacuationRequest{types, zones} {
			if r := mustEvacuate(t, c, e); !r.Repeated || r.ID != e.ID {
				t.Errorf("%d: %+v", i, r)
			}
		}
	}
	// A restoration that was given to both while they knew of different evacuations.
	mustEvacuate(t, b, evacuationOf("apne2-az1", TypeMember))
	r := restorationOf("", "")
	mustRestore(t, a, r)
	mustRestore(t, b, r)
	for range 2 {
		b.arrived(slices.Collect(a.set.Load().all()))
		a.arrived(slices.Collect(b.set.Load().all()))
	}
	if _, err := a.Clear(ctx, tombstone(one.ID), Caller{}); err != nil {
		t.Error(err)
	}
	for i, c := range []*Control{a, b} {
		if got := mustRestore(t, c, r); !got.Repeated {
			t.Errorf("%d: %+v", i, got)
		}
		c.step(ctx, c.now())
		c.step(ctx, c.now()) // members after agents
		if n := len(c.Evacuations()); n > 0 {
			t.Errorf("%d: %d evacuations are left", i, n)
		}
	}
	if got := forced(a.opts.Store, "www.example.com"); got != "- - -" {
		t.Error(got)
	}
	for i, c := range []*Control{a, b} {
		want := c.set.Load()
		_ = c.Close()
		got := openControl(t, dirs[i]).set.Load()
		for rec := range want.all() {
			if kept, ok := got.record(rec.kind()); !ok || !same(kept, rec) {
				t.Errorf("after a restart of %d %s is %s", i, rec.encode(), kept.encode())
			}
		}
	}
}

// Stages that differ move everybody away at once, and those of an evacuation without members say nothing.
func TestMergeStages(t *testing.T) {
	e := func(stages []float64, pause int64, types ...string) Record {
		return Record{Evacuation: &Evacuation{ID: "x", Zone: "z", Types: types, Stages: stages, PauseMS: pause}}
	}
	staged, faster := e([]float64{.5, 1}, 60000, TypeMember), e([]float64{.5, 1}, 30000, TypeMember)
	for _, k := range []struct {
		a, b, want Record
	}{
		{staged, faster, e(nil, 0, TypeMember)},
		{staged, e(nil, 0, TypeMember), e(nil, 0, TypeMember)},
		{staged, e(nil, 0, TypeExec), e([]float64{.5, 1}, 60000, TypeMember, TypeExec)},
		{staged, e([]float64{.5, 1}, 60000, TypeAgent, TypeMember), e([]float64{.5, 1}, 60000, TypeMember, TypeAgent)},
	} {
		for _, m := range []Record{merge(k.a, k.b), merge(k.b, k.a), merge(merge(k.b, k.a), k.a)} {
			if !same(m, k.want) {
				t.Errorf("%s and %s are %s", k.a.encode(), k.b.encode(), m.encode())
			}
		}
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
		s.purgeable(time.Now(), nil)
		s.latchesInForce()
	})
}
