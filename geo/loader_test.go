package geo_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/geo"
)

// A bench runs a Loader in a synctest bubble and keeps what came out of it.
type bench struct {
	*testing.T
	path   string
	loader *geo.Loader
	logs   *observer.ObservedLogs

	mu  sync.Mutex
	dbs []*geo.DB
}

// loaded returns every DB that came, in order.
func (b *bench) loaded() []*geo.DB {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.dbs)
}

// onBench starts a Loader of one file, which is a copy of the one named (empty: none), and runs f.
func onBench(t *testing.T, name string, f func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		b := &bench{T: t, path: filepath.Join(t.TempDir(), "db.mmdb"), logs: logs}
		if name != "" {
			b.put(name)
		}
		b.loader = geo.NewLoader(geo.LoaderOptions{
			Options: geo.Options{Databases: []string{b.path}},
			OnLoad: func(db *geo.DB) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.dbs = append(b.dbs, db)
			},
			Log: zap.New(core),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.loader.Run(ctx) }()
		synctest.Wait()
		f(b)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}

// put overwrites the file in place, as cp does.
func (b *bench) put(name string) {
	b.Helper()
	copyFile(b, file(name), b.path)
}

// looks lets the Loader look at the file n times.
func (b *bench) looks(n int) {
	time.Sleep(time.Duration(n) * 5 * time.Second)
	synctest.Wait()
}

// want checks how many DBs came, and what the last one says of 8.8.8.8: "city", "country" or "nothing".
func (b *bench) want(loads int, what string) {
	b.Helper()
	dbs := b.loaded()
	if len(dbs) != loads {
		b.Fatalf("%d DBs were loaded, want %d; log: %v", len(dbs), loads, b.logs.All())
	}
	got := "nothing"
	if loads > 0 {
		if l := dbs[loads-1].Lookup(netip.MustParseAddr("8.8.8.8")).Location; l != nil {
			got = "country"
			if l.HasCoordinates {
				got = "city"
			}
		}
	}
	if got != what {
		b.Fatalf("8.8.8.8 has a %s, want a %s", got, what)
	}
}

// wantLog checks the messages since the last call.
func (b *bench) wantLog(messages ...string) {
	b.Helper()
	var got []string
	for _, e := range b.logs.TakeAll() {
		got = append(got, e.Message)
	}
	if strings.Join(got, "; ") != strings.Join(messages, "; ") {
		b.Fatalf("log %q, want %q", got, messages)
	}
}

const (
	loaded    = "geo database loaded"
	notLoaded = "geo databases not loaded, keeping those in force"
)

func TestLoaderFollowsTheFile(t *testing.T) {
	onBench(t, "cities.mmdb", func(b *bench) {
		b.want(1, "city")
		b.wantLog(loaded)
		b.looks(10)
		b.want(1, "city")

		b.put("countries.mmdb")
		b.looks(1)
		b.want(1, "city") // seen once: it may still be written to
		b.looks(1)
		b.want(2, "country")
		b.wantLog(loaded)
		if l := b.loaded()[0].Lookup(netip.MustParseAddr("1.1.1.1")).Location; l == nil || !l.HasCoordinates {
			b.Errorf("the DB before changed with the file: %+v", l)
		}
		b.looks(10)
		b.want(2, "country")
		b.wantLog()

		// A new file renamed into place; and the same bytes written again.
		beside := b.path + ".new"
		copyFile(b, file("flat-city.mmdb"), beside)
		if err := os.Rename(beside, b.path); err != nil {
			b.Fatal(err)
		}
		b.looks(2)
		b.want(3, "city")
		if err := os.Chtimes(b.path, time.Time{}, time.Unix(1_700_000_000, 0)); err != nil {
			b.Fatal(err)
		}
		b.looks(2)
		b.want(4, "city")

		// Another file of the same size and time.
		copyFile(b, b.path, beside)
		if err := os.Chtimes(beside, time.Time{}, time.Unix(1_700_000_000, 0)); err != nil {
			b.Fatal(err)
		}
		if err := os.Rename(beside, b.path); err != nil {
			b.Fatal(err)
		}
		b.looks(2)
		b.want(5, "city")
	})
}

func TestLoaderKeepsWhatWorks(t *testing.T) {
	onBench(t, "cities.mmdb", func(b *bench) {
		b.wantLog(loaded)
		for _, broken := range []string{"truncated", "page", "empty", "tree", "asn"} {
			b.put("broken/" + broken + ".mmdb")
			b.looks(20)
			b.want(1, "city")
			b.wantLog(notLoaded) // once
		}
		// The same failure again is no news.
		b.put("broken/asn.mmdb")
		b.looks(20)
		b.wantLog()

		if err := os.Remove(b.path); err != nil {
			b.Fatal(err)
		}
		b.looks(20)
		b.want(1, "city")
		b.wantLog(notLoaded)

		b.put("countries.mmdb")
		b.looks(2)
		b.want(2, "country")
		b.wantLog(loaded)
		if err := os.Remove(b.path); err != nil {
			b.Fatal(err)
		}
		b.looks(2)
		b.wantLog(notLoaded) // after it worked, the same failure is news

		if err := testutil.CollectAndCompare(b.loader, strings.NewReader(`
			# HELP gslbd_geo_reloads_total Times that the geo databases were read, by result.
			# TYPE gslbd_geo_reloads_total counter
			gslbd_geo_reloads_total{result="failure"} 8
			gslbd_geo_reloads_total{result="success"} 2
		`), "gslbd_geo_reloads_total"); err != nil {
			b.Error(err)
		}
		if err := testutil.CollectAndCompare(b.loader, strings.NewReader(`
			# HELP gslbd_geo_database_build_timestamp_seconds When the maker of the geo database in use built it, in Unix time.
			# TYPE gslbd_geo_database_build_timestamp_seconds gauge
			gslbd_geo_database_build_timestamp_seconds{database="`+b.path+`"} 1.7672256e+09
		`), "gslbd_geo_database_build_timestamp_seconds"); err != nil {
			b.Error(err)
		}
	})
}

// A file that grows under the Loader's eyes is left alone until it is whole.
func TestLoaderWaitsForTheCopy(t *testing.T) {
	whole, err := os.ReadFile(file("flat-city.mmdb"))
	if err != nil {
		t.Fatal(err)
	}
	onBench(t, "countries.mmdb", func(b *bench) {
		b.wantLog(loaded)
		for part := 1; part <= 8; part++ {
			if err := os.WriteFile(b.path, whole[:len(whole)*part/8], 0o600); err != nil {
				b.Fatal(err)
			}
			b.looks(1)
		}
		b.want(1, "country")
		b.wantLog()
		b.looks(1)
		b.want(2, "city")
	})
}

func TestLoaderFollowsALink(t *testing.T) {
	onBench(t, "", func(b *bench) {
		b.want(0, "nothing")
		b.wantLog(notLoaded) // there is no such file
		b.looks(5)
		b.wantLog()

		link := func(name string) {
			target, err := filepath.Abs(file(name))
			if err != nil {
				b.Fatal(err)
			}
			if err := os.Symlink(target, b.path+".new"); err != nil {
				b.Fatal(err)
			}
			if err := os.Rename(b.path+".new", b.path); err != nil {
				b.Fatal(err)
			}
		}
		link("cities.mmdb")
		b.looks(2)
		b.want(1, "city")
		link("countries.mmdb")
		b.looks(2)
		b.want(2, "country")
	})
}

// A file that went away and came back is in force again, and the log says so.
func TestLoaderFileGoneAndBack(t *testing.T) {
	onBench(t, "cities.mmdb", func(b *bench) {
		b.wantLog(loaded)
		move := func(from, to string) {
			if err := os.Rename(from, to); err != nil {
				b.Fatal(err)
			}
		}
		// Gone for one look, twice: never for two in a row.
		for range 2 {
			move(b.path, b.path+".away")
			b.looks(1)
			move(b.path+".away", b.path)
			b.looks(1)
		}
		b.wantLog()
		b.want(1, "city")

		move(b.path, b.path+".away")
		b.looks(3)
		b.wantLog(notLoaded)
		move(b.path+".away", b.path)
		b.looks(2)
		b.want(2, "city") // the same file: shared
		b.wantLog(loaded)
		location := func(db *geo.DB) *geo.Location { return db.Lookup(netip.MustParseAddr("8.8.8.8")).Location }
		if location(b.loaded()[0]) != location(b.loaded()[1]) {
			b.Error("an unchanged file was read again")
		}
	})
}

// Running out of descriptors leaves no trace in the file, so that it is tried again as it is.
func TestLoaderRetries(t *testing.T) {
	onBench(t, "cities.mmdb", func(b *bench) {
		b.wantLog(loaded)
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			b.Fatal(err)
		}
		b.put("countries.mmdb")
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
			b.Fatal(err)
		}
		b.looks(10)
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			b.Fatal(err)
		}
		b.want(1, "city")
		b.wantLog(notLoaded)
		b.looks(1)
		b.want(2, "country")
		b.wantLog(loaded)
	})
}

func TestLoaderSet(t *testing.T) {
	onBench(t, "cities.mmdb", func(b *bench) {
		b.wantLog(loaded)
		other := filepath.Join(b.TempDir(), "other.mmdb")
		copyFile(b, file("broken/page.mmdb"), other)
		if err := b.loader.Set(geo.Options{Databases: []string{other}}); err == nil || !strings.Contains(err.Error(), other) {
			b.Fatalf("Set with a broken file: %v", err)
		}
		b.want(1, "city")
		copyFile(b, file("countries.mmdb"), other)
		b.looks(5)
		b.want(1, "city") // it still follows the file of before
		b.wantLog()

		if err := b.loader.Set(geo.Options{
			Databases: []string{other},
			Overrides: []geo.Override{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Site: "seoul"}},
		}); err != nil {
			b.Fatal(err)
		}
		b.want(2, "country")
		b.looks(5)
		b.want(2, "country")
		b.put("flat-city.mmdb")
		b.looks(5)
		b.want(2, "country") // the file of before means nothing any more
		copyFile(b, file("flat-city.mmdb"), other)
		b.looks(2)
		b.want(3, "city")
		if site := b.loaded()[2].Lookup(netip.MustParseAddr("10.1.1.1")).Site; site != "seoul" {
			b.Errorf("the overrides were lost: site %q", site)
		}

		if err := b.loader.Set(geo.Options{}); err != nil {
			b.Fatal(err)
		}
		b.want(4, "nothing")
		b.looks(5)
		b.want(4, "nothing")
	})
}

// What was opened to check the configuration is not read a second time.
func TestLoaderPrevious(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := geo.Options{Databases: []string{file("cities.mmdb")}}
		before := open(t, o)
		o.Previous = before
		var loads int
		loader := geo.NewLoader(geo.LoaderOptions{Options: o, OnLoad: func(db *geo.DB) {
			loads++
			a := netip.MustParseAddr("8.8.8.8")
			if db.Lookup(a).Location != before.Lookup(a).Location {
				t.Error("an unchanged file was read again")
			}
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := loader.Run(ctx); err != nil || loads != 1 {
			t.Errorf("Run: %v, %d loads, want 1", err, loads)
		}
	})
}

// A reload of the configuration keeps what was read of a file that has become unusable, and says so; without that wish
// it is refused.
func TestKeepPrevious(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cities.mmdb")
	good, err := os.ReadFile("../testdata/geo/cities.mmdb")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	before, err := geo.Open(geo.Options{Databases: []string{path}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("<html>"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := geo.Options{Databases: []string{path}, Previous: before}
	if _, err := geo.Open(o); err == nil {
		t.Fatal("a broken file was opened")
	}
	o.KeepPrevious = true
	db, err := geo.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if kept := db.Kept(); len(kept) != 1 || !strings.Contains(kept[0].Error(), path) {
		t.Errorf("kept: %v", kept)
	}
	if r := db.Lookup(netip.MustParseAddr("8.8.8.8")); r.Location == nil || r.Location.Country != "US" {
		t.Errorf("8.8.8.8 is at %+v", r)
	}
	l := geo.NewLoader(geo.LoaderOptions{Options: o, OnLoad: func(*geo.DB) {}})
	if err := l.Set(o); err != nil {
		t.Fatal(err)
	}
	if why := l.Failing(); !strings.Contains(why, path) {
		t.Errorf("Failing() = %q", why)
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Set(o); err != nil || l.Failing() != "" {
		t.Errorf("with a good file again: %v, Failing() = %q", err, l.Failing())
	}
	other := filepath.Join(filepath.Dir(path), "other.mmdb")
	if err := os.WriteFile(other, []byte("<html>"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Databases = append(o.Databases, other)
	if _, err := geo.Open(o); err == nil {
		t.Error("a broken file that was never read before was passed over")
	}
}
