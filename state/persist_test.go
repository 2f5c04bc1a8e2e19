package state_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/state"
)

func keptIn(t *testing.T) string { return filepath.Join(t.TempDir(), "state") }

func TestRestart(t *testing.T) {
	config := func(c *state.Config) {
		c.Services[0].Members = append(c.Services[0].Members, state.MemberConfig{Name: "never", Site: "virginia", Addresses: [2]netip.Addr{addr("9.9.9.9")}})
	}
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(config), dir)
		r.report(sessions("seoul", 950000))
		r.report(says("virginia", down, down))
		r.settle()
		since := r.member("www.example.com", "virginia").Since[state.V4]
		r.stop()

		time.Sleep(2 * time.Minute) // longer than dead_after, shorter than ten minutes
		began := time.Now()
		r = startIn(t, two(config), dir)
		r.want(true, "seoul", "never")
		r.want(false, "virginia")
		if m := r.member("www.example.com", "virginia"); !m.Since[state.V4].Equal(since) || !strings.Contains(m.Why[state.V4], "0 of 2 servers up") {
			t.Errorf("since %v (%v), why %q", m.Since[state.V4], since, m.Why[state.V4])
		}
		if st := r.site("seoul"); !st.Overloaded || st.Freshness != state.Stale || st.ReportAt.IsZero() {
			t.Errorf("overloaded %v, %v, report at %v", st.Overloaded, st.Freshness, st.ReportAt)
		}
		if n := r.logged("member up") + r.logged("member down"); n != 0 {
			t.Errorf("%d transitions by the restart", n)
		}
		// Only virginia reports again. seoul's members hold until dead_after has passed since the start.
		for time.Since(began) < 58*time.Second {
			r.report(says("virginia", up))
			r.settle()
			r.want(true, "seoul", "virginia")
			time.Sleep(4 * time.Second)
		}
		r.report(says("virginia", up))
		time.Sleep(5 * time.Second)
		r.settle()
		r.want(false, "seoul")
		if st := r.site("seoul"); st.Freshness != state.Dead || st.Overloaded {
			t.Errorf("seoul %v, overloaded %v", st.Freshness, st.Overloaded)
		}
	})
}

func TestRestartWhileCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(), dir)
		r.report(says("seoul", up))
		r.report(says("virginia", up))
		for _, wait := range []int{50, 70, 70} { // before it is blind, while it is, and once more
			time.Sleep(time.Duration(wait) * time.Second)
			synctest.Wait()
			r.stop()
			r = startIn(t, two(), dir)
			r.want(true, "seoul", "virginia")
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		r.want(true, "seoul", "virginia")
		if !r.s.Snapshot().Blind {
			t.Error("not blind")
		}
	})
}

// Between the first death and the last it is not yet known that gslbd is blind; a restart must not decide it.
func TestRestartWhileSitesDie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(), dir)
		r.report(says("seoul", up))
		time.Sleep(4 * time.Second)
		r.report(says("virginia", up))
		time.Sleep(58 * time.Second)
		synctest.Wait()
		if st := r.site("seoul").Freshness; st != state.Dead {
			t.Fatalf("seoul is %v", st)
		}
		r.stop()
		r = startIn(t, two(), dir)
		r.want(true, "seoul", "virginia")
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		r.want(true, "seoul", "virginia")
	})
}

// A site that was dead long before all others died is no part of the blindness, also after a restart.
func TestRestartWhileBlindWithADeadSite(t *testing.T) {
	config := func(c *state.Config) {
		c.Sites = append(c.Sites, state.SiteConfig{Name: "atlantis"})
		c.Services[0].Members = append(c.Services[0].Members, state.MemberConfig{Name: "atlantis", Site: "atlantis", Addresses: [2]netip.Addr{addr("3.3.3.3")}})
	}
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(config), dir)
		r.report(says("atlantis", up))
		for range 60 {
			r.report(says("seoul", up))
			r.report(says("virginia", up))
			time.Sleep(5 * time.Second)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for range 2 {
			if !r.s.Snapshot().Blind {
				t.Error("not blind")
			}
			r.want(true, "seoul", "virginia")
			r.want(false, "atlantis")
			r.stop()
			r = startIn(t, two(config), dir)
			r.want(true, "seoul", "virginia")
			r.want(false, "atlantis")
			time.Sleep(5 * time.Minute)
			synctest.Wait()
		}
	})
}

// While gslbd does not run nobody can tell it of servers: that time does not count as silence.
func TestRestartAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(), dir)
		r.report(says("seoul", up))
		r.settle()
		r.report(says("seoul", dunno))
		time.Sleep(5 * time.Second)
		r.stop()
		time.Sleep(2 * time.Minute)
		r = startIn(t, two(), dir)
		r.want(true, "seoul")
		time.Sleep(50 * time.Second)
		r.report(says("seoul", dunno))
		r.settle()
		r.want(true, "seoul")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		r.want(false, "seoul")
	})
}

// A check of before the restart that has not spoken since is no proof that the network works.
func TestRestartWhileCutOffWithChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(checked), dir)
		r.report(says("seoul", up))
		r.report(says("virginia", up))
		r.s.Check(probe("seoul", true, false))
		r.settle()
		r.stop()
		r = startIn(t, two(checked), dir)
		time.Sleep(61 * time.Second)
		synctest.Wait()
		r.want(true, "seoul", "virginia")
		if !r.s.Snapshot().Blind {
			t.Error("not blind")
		}
	})
}

func TestRestartKeepsPoolDampingAndChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		config := func(c *state.Config) {
			c.Services[0].HasCheck = true
			c.Services[0].Members[1].Role = state.Backup
		}
		r := startIn(t, two(config), dir)
		r.report(says("virginia", up))
		for i := range 7 {
			r.s.Check(probe("seoul", i%2 == 0, false))
			r.settle()
		}
		r.want(false, "seoul")
		if r.s.Snapshot().Services[0].Pool != state.Backup {
			t.Fatalf("pool %v", r.s.Snapshot().Services[0].Pool)
		}
		r.stop()
		r = startIn(t, two(config), dir)
		r.want(false, "seoul")
		if r.s.Snapshot().Services[0].Pool != state.Backup || r.logged("pool changed") != 0 {
			t.Error("the pool changed by the restart")
		}
		r.report(says("virginia", up))
		time.Sleep(4 * time.Minute)
		r.report(says("virginia", up))
		r.s.Check(probe("seoul", true, false))
		r.settle()
		r.want(false, "seoul") // still damped
		for range 2 {
			time.Sleep(50 * time.Second)
			r.report(says("virginia", up))
		}
		r.settle()
		r.want(true, "seoul")
	})
}

// Checks that time out while gslbd is blind do not count; a restart must not make them.
func TestRestartWhileBlindWithFailingChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(checked), dir)
		fail := func() {
			r.s.Check(probe("seoul", false, true))
			r.s.Check(probe("virginia", false, true))
		}
		r.s.Check(probe("seoul", true, false))
		r.s.Check(probe("virginia", true, false))
		r.report(says("seoul", up))
		r.report(says("virginia", up))
		time.Sleep(30 * time.Second) // cut off
		fail()
		time.Sleep(time.Minute)
		synctest.Wait()
		r.want(true, "seoul", "virginia")
		r.stop()
		r = startIn(t, two(checked), dir)
		r.want(true, "seoul", "virginia")
		for range 12 {
			time.Sleep(10 * time.Second)
			fail()
			r.settle()
			r.want(true, "seoul", "virginia")
		}
	})
}

// A member whose only source is configured no more is one that nothing has ever covered.
func TestRestartWithoutTheCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(checked), dir)
		r.s.Check(probe("seoul", false, false))
		r.settle()
		r.stop()
		r = startIn(t, two(checked), dir)
		r.want(false, "seoul")
		r.stop()
		r = startIn(t, two(), dir)
		r.want(true, "seoul")
	})
}

func TestOldStateIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(), dir)
		r.report(says("virginia", down))
		r.settle()
		r.stop()
		time.Sleep(10 * time.Minute)
		r = startIn(t, two(), dir)
		r.want(true, "virginia")
	})
}

// A crash loses at most a second of what follows a quiet time, ten of what follows a change, and a state that does not
// change does not grow old.
func TestStateIsSavedWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		// What a crash left while it wrote must not stay for ever.
		if err := os.WriteFile(filepath.Join(dir, "state.json.tmp"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		r := startIn(t, two(), dir)
		written := func() time.Time {
			data, err := os.ReadFile(filepath.Join(dir, "state.json"))
			if err != nil {
				t.Fatal(err)
			}
			var h struct{ Written time.Time }
			if err := json.Unmarshal(data, &h); err != nil {
				t.Fatal(err)
			}
			return h.Written
		}
		r.report(says("virginia", down))
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		data, err := os.ReadFile(filepath.Join(dir, "state.json"))
		if err != nil || !strings.Contains(string(data), "0 of 1 servers up") {
			t.Fatalf("%v: %s", err, data)
		}
		time.Sleep(15 * time.Second)
		r.report(says("seoul", down))
		time.Sleep(1300 * time.Millisecond)
		synctest.Wait()
		data, err = os.ReadFile(filepath.Join(dir, "state.json"))
		if n := strings.Count(string(data), `"measured_why":"virtual server`); err != nil || n != 2 {
			t.Errorf("%v: after a quiet time %d members are written as down, want 2", err, n)
		}
		for range 4 {
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if age := time.Since(written()); age > 70*time.Second {
				t.Fatalf("the file is %s old", age)
			}
		}
		left, err := filepath.Glob(filepath.Join(dir, "*.json.*"))
		if err != nil || len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("directory: %v %v", info.Mode(), err)
		}
	})
}

func TestSecondStoreIsRefused(t *testing.T) {
	dir := keptIn(t)
	first, err := state.New(state.Options{Directory: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := state.New(state.Options{Directory: dir}); err == nil || !strings.Contains(err.Error(), "in use by another gslbd") {
		t.Errorf("err = %v", err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	second, err := state.New(state.Options{Directory: dir})
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}

func TestDirectoryThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := state.New(state.Options{Directory: filepath.Join(file, "state")}); err == nil || !strings.Contains(err.Error(), "state.directory") {
		t.Errorf("err = %v", err)
	}
}

// unwritable makes dir one that nobody can write to, until the test calls mend.
func unwritable(t *testing.T, dir string) (mend func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		mend = sync.OnceFunc(func() { _ = os.Chmod(dir, 0o700) })
		t.Cleanup(mend) // or it cannot be removed
		return mend
	}
	// No permission keeps root from writing.
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("SKIPPED: root needs a mount to be kept from writing: %v", err)
	}
	mend = sync.OnceFunc(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	t.Cleanup(mend)
	if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skipf("SKIPPED: root needs a mount to be kept from writing: %v", err)
	}
	return mend
}

// A state directory that cannot be written stops nobody: what was kept there is read, the fault is said once with what to
// do, and when it is mended the state is kept again without a restart.
func TestDirectoryThatCannotBeWritten(t *testing.T) {
	for _, used := range []bool{true, false} {
		t.Run(fmt.Sprintf("used=%v", used), func(t *testing.T) {
			dir := t.TempDir()
			if used {
				synctest.Test(t, func(t *testing.T) {
					r := startIn(t, two(), dir)
					r.report(says("virginia", down))
					r.settle()
					r.stop()
				})
			}
			mend := unwritable(t, dir)
			synctest.Test(t, func(t *testing.T) {
				if used { // the clock of a test begins anew
					time.Sleep(time.Minute)
				}
				r := startIn(t, two(), dir)
				r.want(true, "seoul")
				r.want(!used, "virginia")
				if why := r.s.Unkept(); !strings.Contains(why, "state.directory: open "+dir) || !strings.Contains(why, "make "+dir+" a directory that the user of gslbd (uid") {
					t.Errorf("Unkept() = %q", why)
				}
				if second, err := state.New(state.Options{Directory: dir}); used {
					if err == nil || !strings.Contains(err.Error(), "in use by another gslbd") {
						t.Errorf("a second one: %v", err)
					}
				} else if err != nil { // there is no lock to take, and nothing that both could write
					t.Errorf("a second one: %v", err)
				} else {
					second.Close()
				}
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if n, again := r.logged("state cannot be kept; trying again"), r.logged("state kept again"); n != 1 || again != 0 || r.s.Unkept() == "" {
					t.Errorf("said %d times, want 1; kept again %d times; Unkept() = %q", n, again, r.s.Unkept())
				}
				mend()
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := r.logged("state kept again"); n != 1 || r.s.Unkept() != "" {
					t.Errorf("said %d times that the state is kept again, want 1; Unkept() = %q", n, r.s.Unkept())
				}
				if _, err := state.New(state.Options{Directory: dir}); err == nil || !strings.Contains(err.Error(), "in use by another gslbd") {
					t.Errorf("a second one: %v", err)
				}
			})
			if _, err := os.Stat(filepath.Join(dir, "state.json")); err != nil {
				t.Error(err)
			}
		})
	}
}

// A directory that cannot even be made is one that cannot be written.
func TestDirectoryThatCannotBeMade(t *testing.T) {
	parent := t.TempDir()
	mend := unwritable(t, parent)
	dir := filepath.Join(parent, "a", "state")
	synctest.Test(t, func(t *testing.T) {
		r := startIn(t, two(), dir)
		if why := r.s.Unkept(); !strings.Contains(why, "state.directory: mkdir ") {
			t.Errorf("Unkept() = %q", why)
		}
		mend()
		time.Sleep(time.Minute)
		synctest.Wait()
		if why := r.s.Unkept(); why != "" || r.logged("state kept again") != 1 {
			t.Errorf("Unkept() = %q", why)
		}
	})
}

func TestBrokenStateIsKeptAside(t *testing.T) {
	for name, content := range map[string]string{
		"empty":       "",
		"cut off":     `{"format":"gslbd state","version":1,"sites":[{"na`,
		"not ours":    `{"hello": "world"}`,
		"later":       `{"format":"gslbd state","version":99}`,
		"wrong type":  `{"format":"gslbd state","version":1,"sites":7}`,
		"round trips": `{"format":"gslbd round trips","version":1}`,
		"binary":      "\x00\x01\x02",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "state.json")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			core, logs := observer.New(zap.WarnLevel)
			s, err := state.New(state.Options{Directory: dir, Log: zap.New(core)})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			s.Configure(two())
			if logs.Len() != 1 {
				t.Errorf("%d warnings, want 1", logs.Len())
			}
			if kept, err := os.ReadFile(path + ".bad"); err != nil || string(kept) != content {
				t.Errorf("kept aside: %q %v", kept, err)
			}
		})
	}
}

// A disk that refuses to be written is said once, and tried again.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(), dir)
		away := dir + ".away"
		if err := os.Rename(dir, away); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if n := r.logged("state cannot be kept; trying again"); n != 1 {
			t.Errorf("%d log lines, want 1", n)
		}
		if r.s.Unkept() == "" {
			t.Error("Unkept() says that the state is kept")
		}
		r.report(says("virginia", down))
		r.settle()
		r.want(false, "virginia")
		if err := os.Rename(away, dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := r.logged("state kept again"); n != 1 {
			t.Errorf("%d log lines \"state kept again\", want 1", n)
		}
		if why := r.s.Unkept(); why != "" {
			t.Errorf("Unkept() = %q", why)
		}
	})
}

// Whatever the file says, the Store starts, publishes, and keeps a state that can be read again.
func FuzzStateFile(f *testing.F) {
	now := time.Now().UTC().Format(time.RFC3339)
	f.Add([]byte(`{"format":"gslbd state","version":1,"written":"`+now+`","sites":[{"name":"seoul","report_at":"`+now+`","alive":true,"shed":9}],`+
		`"services":[{"name":"www.example.com","pool":1,"pool_since":"`+now+`","members":[{"name":"seoul","site":"seoul","counted":true,"servers":3,"servers_up":9,`+
		`"health":[{"address":"1.1.1.1","known":true,"measured":true,"flips":["`+now+`"],"damped_until":"2999-01-01T00:00:00Z","report":{"agent":"a","state":9},"check":{"up":true}},null]}]}]}`),
		[]byte(`{"format":"gslbd round trips","version":1,"written":"`+now+`","sites":["seoul"],"rows":[{"network":"1.2.3.0/24","values":[{"site":0,"age_ms":5,"us":[1,2,3,4,5,6]},{"site":7}]}]}`))
	f.Add([]byte(`{}`), []byte(`null`))
	f.Fuzz(func(t *testing.T, st, rtt []byte) {
		dir := t.TempDir()
		for name, data := range map[string][]byte{"state.json": st, "rtt.json": rtt} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := state.New(state.Options{Directory: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.Configure(two(checked, usesRTT, func(c *state.Config) { c.Services[0].Members[1].Role = state.Backup }))
		snap := s.Snapshot()
		for _, m := range snap.Services[0].Members {
			if m.ServersUp > m.Servers || m.Up[state.V6] {
				t.Errorf("member = %+v", m)
			}
		}
		for _, site := range snap.Sites {
			if site.Shed < 0 || site.Shed > 1 || site.ReportAt.After(time.Now()) {
				t.Errorf("site = %+v", site)
			}
		}
	})
}
