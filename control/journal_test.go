package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"gslbd/state"
)

func TestOrdersSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	c := openControl(t, dir)
	o := orderTo(Down, Target{Site: "seoul"})
	gone := orderTo(Down, Target{Site: "busan"})
	mustForce(t, c, o)
	mustForce(t, c, gone)
	if _, err := c.Clear(context.Background(), tombstone(gone.ID), Caller{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.acceptMarked(context.Background(), map[string]string{"a": "1", "b": "2"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.acceptMarked(context.Background(), map[string]string{"b": ""}); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, journalFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}

	c = openControl(t, dir)
	if p := c.Problems(); len(p) != 0 {
		t.Fatal(p)
	}
	if got := forced(c.opts.Store, "www.example.com"); got != "down - -" {
		t.Error(got)
	}
	if all := c.Orders(); len(all) != 1 || !same(Record{Order: &all[0].Order}, Record{Order: &o}) {
		t.Errorf("%+v", all)
	}
	if c.mark("a") != "1" || c.mark("b") != "" {
		t.Error("marks are not as they were")
	}
	if !mustForce(t, c, o).Repeated {
		t.Error("the order is not known")
	}
}

// damage alters one journal file of 20 orders; the orders that can still be read must stay in force.
func TestDamagedJournals(t *testing.T) {
	edit := func(f func(tx *bbolt.Tx) error) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			db, err := bbolt.Open(path, 0o600, nil)
			if err == nil {
				err = errors.Join(db.Update(f), db.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	first := func(tx *bbolt.Tx) ([]byte, []byte) { return tx.Bucket([]byte("order")).Cursor().First() }
	for _, tt := range []struct {
		name   string
		damage func(t *testing.T, path string)
		left   int // orders
		says   []string
	}{
		{"garbage", func(t *testing.T, path string) { write(t, path, bytes.Repeat([]byte("garbage "), 9000)) }, 0, nil},
		{"short garbage", func(t *testing.T, path string) { write(t, path, []byte("x")) }, 0, nil},
		{"empty", func(t *testing.T, path string) { write(t, path, nil) }, 0, []string{"the file is empty"}},
		{"a directory in its place", func(t *testing.T, path string) {
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
		}, 0, nil},
		{"cut off", func(t *testing.T, path string) {
			if err := os.Truncate(path, 9000); err != nil {
				t.Fatal(err)
			}
		}, -1, nil},
		{"half-written JSON", edit(func(tx *bbolt.Tx) error {
			k, v := first(tx)
			return tx.Bucket([]byte("order")).Put(k, v[:len(v)/2])
		}), 19, []string{"1 records cannot be read", "cut off or altered"}},
		{"altered text", edit(func(tx *bbolt.Tx) error {
			k, v := first(tx)
			return tx.Bucket([]byte("order")).Put(k, bytes.Replace(v, []byte("seoul"), []byte("busan"), 1))
		}), 19, []string{"cut off or altered"}},
		{"under another id", edit(func(tx *bbolt.Tx) error {
			_, v := first(tx)
			return errors.Join(tx.Bucket([]byte("order")).Put([]byte("x"), v), tx.Bucket([]byte("order")).Delete([]byte("x2")))
		}), 20, []string{"records cannot be read"}},
		{"lost record", edit(func(tx *bbolt.Tx) error {
			k, _ := first(tx)
			return tx.Bucket([]byte("order")).Delete(k)
		}), 19, []string{"records are missing"}},
		{"lost kind", edit(func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("latch")) }), 20, []string{`"latch" are gone`}},
		{"another version", edit(func(tx *bbolt.Tx) error {
			return tx.Bucket(metaBucket).Put(formatKey, []byte("gslbd orders 2"))
		}), 0, []string{`its format is "gslbd orders 2" and this version of gslbd reads "gslbd orders 1"`}},
		{"no journal", edit(func(tx *bbolt.Tx) error { return tx.DeleteBucket(metaBucket) }), 0, []string{"no journal of gslbd"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, journalFile)
			c := openControl(t, dir)
			for range 20 {
				mustForce(t, c, orderTo(Down, Target{Site: "seoul"}))
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			tt.damage(t, path)

			c = openControl(t, dir)
			if n := len(c.Orders()); n != tt.left && tt.left >= 0 {
				t.Errorf("%d orders are left, want %d", n, tt.left)
			}
			p := strings.Join(c.Problems(), "\n")
			for _, w := range append(tt.says, path, "Move the file away and restart gslbd", "new orders are refused") {
				if !strings.Contains(p, w) {
					t.Errorf("problems do not say %q: %s", w, p)
				}
			}
			_, err := c.Force(context.Background(), orderTo(Down, Target{Site: "busan"}), Caller{})
			expectError(t, err, ErrUnavailable, path)
			if c.opts.Store.Snapshot() == nil {
				t.Error("no answers")
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path, path+".bad"); err != nil { // as the message says
				t.Fatal(err)
			}
			mustForce(t, openControl(t, dir), orderTo(Down, Target{Site: "busan"}))
		})
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestFlippedPages overwrites random stretches of a journal: whatever is damaged, gslbd starts, what is in force was
// ordered, and unless a problem is told of, all of it is.
func TestFlippedPages(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := openJournal(dir)
	want := map[string]string{}
	for range 8 {
		var recs []Record
		for range 25 {
			o := orderTo(Down, Target{Site: "seoul"})
			recs = append(recs, Record{Order: &o})
			want[o.ID] = string(recs[len(recs)-1].encode())
		}
		if err := j.write(recs, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	sound, err := os.ReadFile(j.path)
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	found := 0
	for range 100 {
		b := bytes.Clone(sound)
		for range 1 + rnd.IntN(3) {
			at := rnd.IntN(len(b))
			if rnd.IntN(2) == 0 { // headers of pages and elements
				at = at&^4095 + rnd.IntN(64)
			}
			for i := at; i < min(len(b), at+1+rnd.IntN(8)); i++ {
				b[i] ^= byte(1 + rnd.IntN(255))
			}
		}
		write(t, j.path, b)
		k, recs, _ := openJournal(dir)
		for _, r := range recs {
			if want[r.Order.ID] != string(r.encode()) {
				t.Fatalf("seed %d: a record that was never written: %s", seed, r.encode())
			}
		}
		if k.problem() != "" {
			found++
		} else if len(recs) != len(want) {
			t.Fatalf("seed %d: %d of %d records, and no problem", seed, len(recs), len(want))
		}
		if err := k.close(); err != nil {
			t.Fatal(err)
		}
	}
	if found < 10 {
		t.Errorf("seed %d: only %d of 100 were found damaged", seed, found)
	}
}

func TestHeldJournal(t *testing.T) {
	dir := t.TempDir()
	holder, _, _ := openJournal(dir)
	defer func() { _ = holder.close() }()
	c := openControl(t, dir) // which does not wait for ever
	if p := c.Problems(); len(p) != 1 || !strings.Contains(p[0], "another process holds the file") {
		t.Error(p)
	}
}

// mountTmpfs mounts a file system in memory, or skips.
func mountTmpfs(t *testing.T, size string) (dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: mounting a file system needs root")
	}
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("SKIPPED: cannot mount a file system here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

func TestReadOnlyDirectory(t *testing.T) {
	dir := mountTmpfs(t, "1m")
	c := openControl(t, dir)
	mustForce(t, c, orderTo(Down, Target{Site: "seoul"}))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	remount := func(flags uintptr) {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	remount(syscall.MS_RDONLY)
	c = openControl(t, dir)
	if p := strings.Join(c.Problems(), ""); !strings.Contains(p, "read-only file system") || !strings.Contains(p, "writable") || !strings.Contains(p, "1 records") {
		t.Error(p)
	}
	if got := forced(c.opts.Store, "www.example.com"); got != "down - -" {
		t.Error(got)
	}
	_, err := c.Force(context.Background(), orderTo(Down, Target{Site: "busan"}), Caller{})
	expectError(t, err, ErrUnavailable, "read-only file system")
	late := orderTo(Down, Target{Site: "busan"}) // which came by etcd
	c.arrived([]Record{{Order: &late}})
	c.keepUnkept()
	if len(c.Problems()) == 0 {
		t.Error("there is no problem any more")
	}
	remount(0) // and without a restart
	c.keepUnkept()
	if p := c.Problems(); len(p) > 0 {
		t.Error(p)
	}
	mustForce(t, c, orderTo(Down, Target{Site: "virginia"}))
	_ = c.Close()
	c = openControl(t, dir)
	if got := forced(c.opts.Store, "www.example.com"); got != "down down down" || len(c.Problems()) > 0 {
		t.Error(got, c.Problems())
	}
}

func TestReadOnlyFromTheStart(t *testing.T) {
	dir := mountTmpfs(t, "1m")
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if p := strings.Join(openControl(t, dir).Problems(), ""); !strings.Contains(p, "read-only file system") {
		t.Error(p)
	}
}

// Where the disk that holds the orders is mounted late, over a directory that could not be written, they come into force.
func TestMountedLate(t *testing.T) {
	dir := mountTmpfs(t, "1m")
	before := openControl(t, dir)
	o := orderTo(Down, Target{Site: "seoul"})
	mustForce(t, before, o)
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	c := openControl(t, dir)
	if all := c.Orders(); len(all) > 0 {
		t.Fatal(all)
	}
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	c.keepUnkept()
	if p := c.Problems(); len(p) > 0 {
		t.Error(p)
	}
	if got := forced(c.opts.Store, "www.example.com"); len(c.Orders()) != 1 || got != "down - -" {
		t.Errorf("%v, %s", c.Orders(), got)
	}
	_ = c.Close()
	if all := openControl(t, dir).Orders(); len(all) != 1 || all[0].ID != o.ID {
		t.Errorf("after a restart: %v", all)
	}
}

// One that is damaged is left as it is, like one that was there at the start.
func TestMountedLateAndDamaged(t *testing.T) {
	dir := mountTmpfs(t, "1m")
	journal := filepath.Join(dir, journalFile)
	write(t, journal, []byte("damaged"))
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	c := openControl(t, dir)
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	c.keepUnkept()
	c.keepUnkept()
	if p := strings.Join(c.Problems(), ""); !strings.Contains(p, "Move the file away and restart") {
		t.Error(p)
	}
	if b, err := os.ReadFile(journal); string(b) != "damaged" {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestFullDisk(t *testing.T) {
	dir := mountTmpfs(t, "1m")
	c := openControl(t, dir)
	var kept []Order
	ballast := filepath.Join(dir, "ballast")
	fill := func() {
		f, err := os.OpenFile(ballast, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(f, zeros{})
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	give := func() error {
		o := orderTo(Down, Target{Site: "seoul"})
		_, err := c.Force(context.Background(), o, Caller{})
		if err == nil {
			kept = append(kept, o)
		}
		return err
	}
	if err := give(); err != nil {
		t.Fatal(err)
	}
	fill()
	var refused error
	for range 500 {
		if refused = give(); refused != nil {
			break
		}
	}
	expectError(t, refused, ErrUnavailable, "no space left on device", journalFile)
	if p := strings.Join(c.Problems(), ""); !strings.Contains(p, "no space left") {
		t.Error(p)
	}
	if n := len(c.Orders()); n != len(kept) {
		t.Errorf("%d orders in force, %d were accepted", n, len(kept))
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := give(); err != nil {
		t.Fatalf("with space again: %v", err)
	}
	if p := c.Problems(); len(p) != 0 {
		t.Error(p)
	}
	_ = c.Close()
	c = openControl(t, dir)
	if n := len(c.Orders()); n != len(kept) || len(c.Problems()) != 0 {
		t.Errorf("%d orders after a restart, %d were accepted; %q", n, len(kept), c.Problems())
	}
	_ = c.Close()

	fill() // and a start on a full disk
	c = openControl(t, dir)
	if n := len(c.Orders()); n != len(kept) {
		t.Errorf("%d orders on a full disk, %d were accepted", n, len(kept))
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	c.keepUnkept()
	if err := give(); err != nil {
		t.Error(err)
	}
}

// breakJournal has the journal take no records until mend is called.
func breakJournal(c *Control) (mend func()) {
	j := c.journal
	db := j.db
	j.db, j.fault = nil, "no space left on device"
	return func() { j.db, j.fault = db, "" }
}

// What came by etcd while the disk took nothing is in force, and is accepted from nobody before it is on the disk.
func TestArrivedAndNotKept(t *testing.T) {
	dir := t.TempDir()
	c := openControl(t, dir)
	mend := breakJournal(c)
	o := orderTo(Down, Target{Site: "seoul"})
	cleared := orderTo(Down, Target{Site: "busan"})
	ts := tombstone(cleared.ID)
	e := evacuationOf("use1-az1", TypeMember)
	c.arrived([]Record{{Order: &o}, {Order: &cleared}, {Tombstone: &ts}, {Evacuation: &e.Evacuation}})
	if got := forced(c.opts.Store, "www.example.com"); got != "down - evacuated" {
		t.Error(got)
	}
	give := func() (all [3]error, repeated [3]bool) {
		var r [3]Receipt
		r[0], all[0] = c.Force(context.Background(), o, Caller{})
		r[1], all[1] = c.Clear(context.Background(), tombstone(cleared.ID), Caller{})
		r[2], all[2] = c.Evacuate(context.Background(), e, Caller{})
		for i := range r {
			repeated[i] = r[i].Repeated
		}
		return all, repeated
	}
	all, _ := give()
	for _, err := range all {
		expectError(t, err, ErrUnavailable, "no space left on device")
	}
	mend()
	if all, repeated := give(); all != [3]error{} || repeated != [3]bool{true, true, true} {
		t.Errorf("%v, %v", all, repeated)
	}
	_ = c.Close()
	c = openControl(t, dir)
	if got := forced(c.opts.Store, "www.example.com"); got != "down - evacuated" || c.set.Load().ended(cleared.ID) == nil {
		t.Errorf("after a restart: %s", got)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// writeUntilKilled gives orders, and prints the id of each that was accepted.
func writeUntilKilled(dir string) {
	store, err := state.New(state.Options{})
	if err != nil {
		panic(err)
	}
	configureFleet(store)
	c := New(Options{Directory: dir, Node: "gslb1", Store: store})
	for i := 0; ; i++ {
		o := orderTo(Down, Target{Site: "seoul"})
		o.Reason = strings.Repeat("x", 1+i*37%256) // so that pages split at different places
		if _, err := c.Force(context.Background(), o, Caller{}); err != nil {
			fmt.Println("refused:", err)
			return
		}
		fmt.Println(o.ID)
	}
}

// TestKilledWhileWriting kills a writer at random moments, from before the journal exists: each order that it
// acknowledged must be there afterwards. CONTROL_KILLS says how often (default 25).
func TestKilledWhileWriting(t *testing.T) {
	kills := 25
	if s := os.Getenv("CONTROL_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	acknowledged := map[string]bool{}
	acked, fresh := 0, 0
	for i := range kills {
		if i%20 == 0 { // a new journal now and then: its making must be killed too, and reading must stay quick
			dir = t.TempDir()
			clear(acknowledged)
		}
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "CONTROL_TEST_WRITER="+dir)
		cmd.Stderr = os.Stderr
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var out []byte
		if i%4 != 0 { // in the midst of its work; the others, perhaps before it has begun
			out = make([]byte, 1)
			if _, err := io.ReadFull(pipe, out); err != nil {
				t.Fatal(err)
			}
		}
		time.AfterFunc(time.Duration(rand.Int64N(int64(50*time.Millisecond))), func() { _ = cmd.Process.Kill() })
		rest, _ := io.ReadAll(pipe)
		out = append(out, rest...)
		_ = cmd.Wait()
		if _, err := os.Stat(filepath.Join(dir, journalFile)); err != nil {
			fresh++
		}
		lines := strings.SplitAfter(string(out), "\n")
		for _, line := range lines {
			id, whole := strings.CutSuffix(line, "\n")
			if strings.HasPrefix(line, "refused") {
				t.Fatal(line)
			}
			if whole {
				acknowledged[id] = true
				acked++
			}
		}
		j, recs, _ := openJournal(dir)
		if p := j.problem(); p != "" {
			t.Fatalf("kill %d: %s", i, p)
		}
		have := map[string]bool{}
		for _, r := range recs {
			have[r.Order.ID] = true
		}
		for id := range acknowledged {
			if !have[id] {
				t.Fatalf("kill %d: the acknowledged order %s is lost", i, id)
			}
		}
		if err := j.close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kills, %d of them before there was a journal; %d acknowledged orders, none lost", kills, fresh, acked)
	if acked == 0 {
		t.Error("nothing was acknowledged: nothing was tested")
	}
}
