package dns_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/dns"
)

const (
	hour = time.Hour
	day  = 24 * time.Hour
)

// TestLoadKeys checks what is refused, by an error that names the file and says what to do.
func TestLoadKeys(t *testing.T) {
	replace := func(file, old, now string) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		info, _ := os.Stat(file)
		if !bytes.Contains(text, []byte(old)) {
			t.Fatalf("%s has no %q", file, old)
		}
		if err := os.WriteFile(file, bytes.Replace(text, []byte(old), []byte(now), 1), info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name  string
		spoil func(dir, base string)
		want  string // BASE and DIR stand for what they are
	}{
		{"good", func(string, string) {}, ""},
		{"no directory", func(dir, _ string) { os.RemoveAll(dir) }, "open DIR: no such file or directory"},
		{"none", func(_, base string) { os.Remove(base + ".key"); os.Remove(base + ".private") }, "DIR has no key of gslb.test. that a DS could name (flags 257): make one by gslbd keygen"},
		{"readable", func(_, base string) { os.Chmod(base+".private", 0o640) }, "BASE.private can be read or written by others than its owner (mode 0640): run chmod 600 BASE.private"},
		{"no private half", func(_, base string) { os.Remove(base + ".private") }, "BASE.key has no .private file beside it: bring it back, or remove both"},
		{"no public half", func(_, base string) { os.Remove(base + ".key") }, "open BASE.key: no such file or directory"},
		{"no key", func(_, base string) { os.WriteFile(base+".key", []byte("; nothing\n"), 0o644) }, "BASE.key holds no DNSKEY record"},
		{"a pipe's worth", func(_, base string) { os.WriteFile(base+".key", make([]byte, 1<<20), 0o644) }, "BASE.key has more than 65536 octets, and cannot be meant"},
		{"another zone", func(_, base string) { replace(base+".key", "gslb.test.\t", "other.test.\t") }, "BASE.key is a key of other.test., not of gslb.test."},
		{"revoked", func(_, base string) { replace(base+".key", "257 3", "385 3") }, "BASE.key is a revoked key, which is not supported: remove it"},
		{"no zone key", func(_, base string) { replace(base+".key", "257 3", "1 3") }, "BASE.key has flags 1 and protocol 3: a key that signs has flags 256 or 257 and protocol 3"},
		{"broken", func(_, base string) { replace(base+".private", "PrivateKey: ", "PrivateKey: !") }, "BASE.private holds no private key of ecdsap256sha256 that can be read"},
		{"revoke time", func(_, base string) { replace(base+".private", "Publish:", "Revoke:") }, "BASE.private has a time for Revoke, which is not supported: remove the line"},
		{"time", func(_, base string) { replace(base+".private", "Publish: 2", "Publish: two") }, "BASE.private: publish is not a time such as 20060102150405"},
		{"expired", func(_, base string) { setTimes(t, base, keyTimes{"Activate": -2 * hour, "Inactive": -hour}) }, "DIR has no active key of gslb.test. that a DS could name (flags 257): BASE.private is retired"},
		{"early", func(_, base string) { setTimes(t, base, keyTimes{"Publish": -hour, "Activate": hour}) }, "BASE.private is published"},
		{"another algorithm", func(dir, _ string) { makeKey(t, dir, "ed25519", dns.CSK, nil) }, ".key has the algorithm ed25519, and the zone ecdsap256sha256: make a key of that algorithm by gslbd keygen, or change zones[].dnssec.algorithm"},
		{"another private half", func(dir, base string) {
			other := makeKey(t, t.TempDir(), "", dns.CSK, nil)
			text, _ := os.ReadFile(other + ".private")
			os.WriteFile(base+".private", text, 0o600)
		}, "BASE.private is not the private half of BASE.key"},
		{"another name", func(dir, base string) {
			os.Rename(base+".key", filepath.Join(dir, "Kgslb.test.+013+00000.key"))
			os.Rename(base+".private", filepath.Join(dir, "Kgslb.test.+013+00000.private"))
		}, "DIR/Kgslb.test.+013+00000.key holds the key NAME: give the file that name"},
		{"too many", func(dir, _ string) {
			for range 16 {
				makeKey(t, dir, "", dns.ZSK, nil)
			}
		}, "DIR has 17 keys of gslb.test., more than 16: remove those that are no longer published"},
		{"only a ZSK", func(dir, base string) {
			os.Remove(base + ".key")
			os.Remove(base + ".private")
			makeKey(t, dir, "", dns.ZSK, nil)
		}, "DIR has no key of gslb.test. that a DS could name (flags 257): make one by gslbd keygen"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "keys")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			base := makeKey(t, dir, "", dns.CSK, nil)
			tt.spoil(dir, base)
			_, err := dns.LoadKeys(dns.KeyOptions{Zone: "GSLB.test", Directory: dir}, time.Now())
			want := strings.NewReplacer("BASE", base, "DIR", dir, "NAME", filepath.Base(base)).Replace(tt.want)
			if got := fmt.Sprint(err); tt.want == "" && err != nil || !strings.Contains(got, want) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	if _, err := dns.LoadKeys(dns.KeyOptions{Zone: "gslb.test", Algorithm: "rsa"}, time.Now()); fmt.Sprint(err) != `"rsa" is no algorithm that signs: choose one of ecdsap256sha256, ecdsap384sha384, ed25519` {
		t.Error(err)
	}
}

// TestAlgorithms checks that signatures of every algorithm verify, for one key and for a pair.
func TestAlgorithms(t *testing.T) {
	for _, algorithm := range []string{"ecdsap256sha256", "ecdsap384sha384", "ed25519"} {
		for _, roles := range [][]dns.KeyRole{{dns.CSK}, {dns.KSK, dns.ZSK}} {
			dir := t.TempDir()
			for _, role := range roles {
				makeKey(t, dir, algorithm, role, nil)
			}
			r := signedWorld(t, dir, algorithm).responder(t, dns.Options{})
			keys := apexKeys(t, r)
			if len(keys) != len(roles) {
				t.Errorf("%s: %d keys", algorithm, len(keys))
			}
			for _, q := range [][2]string{{"", "DNSKEY"}, {"www.", "A"}, {"nx.", "A"}, {"txt.", "TXT"}} {
				reply, wire := ask(t, r, question(q[0]+"gslb.test.", q[1], secure), false)
				validate(t, reply, keys, time.Now())
				if len(wire) > 1232 {
					t.Errorf("%s %v: %d octets", algorithm, q, len(wire))
				}
				for _, rr := range slices.Concat(reply.Answer, reply.Ns) {
					sig, ok := rr.(*mdns.RRSIG)
					if !ok || len(roles) == 1 {
						continue
					}
					for _, key := range keys {
						if key.KeyTag() == sig.KeyTag && (key.Flags == 257) != (sig.TypeCovered == mdns.TypeDNSKEY) {
							t.Errorf("%s: %s is signed with flags %d", algorithm, mdns.Type(sig.TypeCovered), key.Flags)
						}
					}
				}
			}
		}
	}
}

// A cacher is a resolver that keeps the DNSKEY set and answers for as long as their TTLs allow, and validates the one by
// the other as both age: what a rollover has to leave good at every moment.
type cacher struct {
	t       *testing.T
	sets    map[time.Time][]*mdns.DNSKEY
	answers map[time.Time]*mdns.Msg
}

// look asks r at the time now, and validates what may be cached by all of the sets of keys that may be cached.
func (c *cacher) look(r *dns.Responder, now time.Time) {
	c.t.Helper()
	r.Refresh(now)
	keys := apexKeys(c.t, r)
	reply, _ := ask(c.t, r, question("gslb.test.", "DNSKEY", secure), false)
	validate(c.t, reply, keys, now)
	c.sets[now] = keys
	c.answers[now], _ = ask(c.t, r, question("txt.gslb.test.", "TXT", secure), false)
	for _, old := range []time.Duration{0, 300 * time.Second, hour} {
		for _, older := range []time.Duration{0, 300 * time.Second, hour} {
			keys, answer := c.sets[now.Add(-old)], c.answers[now.Add(-older)]
			if keys != nil && answer != nil && older <= 300*time.Second {
				validate(c.t, answer, keys, now)
			}
		}
	}
}

// TestZSKRollover lets the times in the files replace a ZSK, published before it signs (RFC 6781 section 4.1.1.1), and
// checks that everything validates all the time by whatever may be cached.
func TestZSKRollover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		makeKey(t, dir, "", dns.KSK, nil)
		makeKey(t, dir, "", dns.ZSK, keyTimes{"Publish": -day, "Activate": -day, "Inactive": 2 * day, "Delete": 3 * day})
		makeKey(t, dir, "", dns.ZSK, keyTimes{"Publish": day, "Activate": 2 * day})
		w := signedWorld(t, dir, "")
		r := w.responder(t, dns.Options{})
		c := &cacher{t, map[time.Time][]*mdns.DNSKEY{}, map[time.Time]*mdns.Msg{}}
		var seen []string
		for range 5 * 24 * 12 {
			c.look(r, time.Now())
			if s := phases(w, time.Now()); len(seen) == 0 || seen[len(seen)-1] != s {
				seen = append(seen, s)
			}
			time.Sleep(5 * time.Minute)
		}
		want := "ksk active, zsk active, zsk generated; ksk active, zsk active, zsk published; ksk active, zsk active, zsk retired; ksk active, zsk active, zsk removed"
		if got := strings.Join(seen, "; "); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if n := len(apexKeys(t, r)); n != 2 {
			t.Errorf("%d keys are left", n)
		}
	})
}

// phases tells what the keys of the only signed zone do.
func phases(w *testWorld, now time.Time) string {
	var all []string
	for _, k := range w.tables.DNSSEC(now)[0].Keys {
		all = append(all, fmt.Sprintf("%s %s", k.Role, k.Phase))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// TestKSKRollover replaces a KSK by two DS records at the parent (RFC 6781 section 4.1.2), as CDS and CDNSKEY ask for, and
// checks that the keys validate by every DS that is asked for, as long as it is.
func TestKSKRollover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		makeKey(t, dir, "", dns.ZSK, nil)
		makeKey(t, dir, "", dns.KSK, keyTimes{"Publish": -day, "Activate": -day, "SyncPublish": -day, "SyncDelete": 2 * day, "Inactive": 3 * day, "Delete": 4 * day})
		makeKey(t, dir, "", dns.KSK, keyTimes{"Publish": hour, "Activate": hour, "SyncPublish": day})
		r := signedWorld(t, dir, "").responder(t, dns.Options{})
		var counts []string
		for range 5 * 24 {
			r.Refresh(time.Now())
			keys := apexKeys(t, r)
			reply, wire := ask(t, r, question("gslb.test.", "DNSKEY", secure), false)
			validate(t, reply, keys, time.Now())
			if len(wire) > 1232 {
				t.Errorf("DNSKEY has %d octets", len(wire))
			}
			cds, _ := ask(t, r, question("gslb.test.", "CDS", secure), false)
			validate(t, cds, keys, time.Now())
			child, _ := ask(t, r, question("gslb.test.", "CDNSKEY", secure), false)
			validate(t, child, keys, time.Now())
			n := 0
			for _, rr := range cds.Answer {
				ds, ok := rr.(*mdns.CDS)
				if !ok {
					continue
				}
				n++
				if !slices.ContainsFunc(keys, func(k *mdns.DNSKEY) bool {
					return k.KeyTag() == ds.KeyTag && strings.EqualFold(k.ToDS(mdns.SHA256).Digest, ds.Digest) &&
						slices.ContainsFunc(reply.Answer, func(rr mdns.RR) bool { sig, ok := rr.(*mdns.RRSIG); return ok && sig.KeyTag == ds.KeyTag })
				}) {
					t.Errorf("no signature of the keys is by what the CDS asks for: %v\n%s", ds, show(reply))
				}
			}
			if s := fmt.Sprintf("%d keys %d CDS", len(keys), n); len(counts) == 0 || counts[len(counts)-1] != s {
				counts = append(counts, s)
			}
			time.Sleep(time.Hour)
		}
		if got, want := strings.Join(counts, ", "), "2 keys 1 CDS, 3 keys 1 CDS, 3 keys 2 CDS, 3 keys 1 CDS, 2 keys 1 CDS"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

// TestKeysGoOn checks that the zone goes on with its last keys where the times leave none.
func TestKeysGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		base := makeKey(t, dir, "", dns.CSK, keyTimes{"Publish": -day, "Activate": -day, "Inactive": hour, "Delete": 2 * hour})
		w := signedWorld(t, dir, "")
		r := w.responder(t, dns.Options{})
		for range 30 {
			r.Refresh(time.Now())
			reply, _ := ask(t, r, question("txt.gslb.test.", "TXT", secure), false)
			validate(t, reply, apexKeys(t, r), time.Now())
			time.Sleep(24 * time.Hour)
		}
		want := fmt.Sprintf("%s has no active key of gslb.test. that a DS could name (flags 257): %s.private is removed; the keys that signed last go on", dir, base)
		if got := w.tables.DNSSEC(time.Now())[0].Problem; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

// TestKeysClock sets the clock ahead, past a rollover, and back: the keys are again those of the time that it is.
func TestKeysClock(t *testing.T) {
	dir := t.TempDir()
	makeKey(t, dir, "", dns.KSK, nil)
	makeKey(t, dir, "", dns.ZSK, keyTimes{"Publish": -day, "Activate": -day, "Inactive": 2 * day, "Delete": 3 * day})
	makeKey(t, dir, "", dns.ZSK, keyTimes{"Publish": day, "Activate": 2 * day})
	r := signedWorld(t, dir, "").responder(t, dns.Options{})
	before := fmt.Sprint(apexKeys(t, r))
	for _, ahead := range []time.Duration{10 * day, 2 * day, 36 * hour, 0} {
		now := time.Now().Add(ahead)
		r.Refresh(now)
		keys := apexKeys(t, r)
		reply, _ := ask(t, r, question("txt.gslb.test.", "TXT", secure), false)
		validate(t, reply, keys, now)
		if want := map[time.Duration]int{10 * day: 2, 2 * day: 3, 36 * hour: 3, 0: 2}[ahead]; len(keys) != want {
			t.Errorf("%v ahead: %d keys, want %d", ahead, len(keys), want)
		}
	}
	if got := fmt.Sprint(apexKeys(t, r)); got != before {
		t.Errorf("when the clock is right again:\ngot  %s\nwant %s", got, before)
	}
}

// TestKeysReload runs a server, changes the directory of the keys, and looks at what is in force and in the log.
func TestKeysReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		base := makeKey(t, dir, "", dns.CSK, nil)
		core, logged := observer.New(zap.InfoLevel)
		w := signedWorld(t, dir, "")
		r, stop := dns.NewSignedResponder(t, w.store, zap.New(core))
		defer stop()
		before := apexKeys(t, r)[0].KeyTag()

		os.Chmod(base+".private", 0o644)
		time.Sleep(4*time.Minute + time.Second) // not at the moment of a look
		if got := w.tables.DNSSEC(time.Now())[0].Problem; !strings.HasPrefix(got, "the keys stay in force as they were read before: "+base) {
			t.Errorf("got %q", got)
		}
		if n := logged.FilterMessage("DNSSEC keys not loaded, keeping those in force").Len(); n != 1 {
			t.Errorf("told %d times", n)
		}
		if keys := apexKeys(t, r); len(keys) != 1 || keys[0].KeyTag() != before {
			t.Errorf("the keys are not kept: %v", keys)
		}

		os.Chmod(base+".private", 0o600)
		makeKey(t, dir, "", dns.ZSK, nil)
		time.Sleep(3 * time.Minute)
		if got := w.tables.DNSSEC(time.Now())[0].Problem; got != "" {
			t.Errorf("got %q", got)
		}
		r.Refresh(time.Now())
		keys := apexKeys(t, r)
		reply, _ := ask(t, r, question("txt.gslb.test.", "TXT", secure), false)
		validate(t, reply, keys, time.Now())
		if sig := reply.Answer[1].(*mdns.RRSIG); len(keys) != 2 || sig.KeyTag == before {
			t.Errorf("%d keys, signed by %d", len(keys), sig.KeyTag)
		}
		if logged.FilterMessage("DNSSEC keys loaded").Len() != 1 || logged.FilterMessage("other DNSSEC keys sign").Len() != 1 {
			t.Errorf("told: %v", logged.All())
		}

		// A half that is not there yet is no error, if it comes soon.
		base = makeKey(t, dir, "", dns.ZSK, keyTimes{"Publish": 0, "Activate": hour})
		os.Rename(base+".key", base+".later")
		time.Sleep(time.Minute)
		os.Rename(base+".later", base+".key")
		time.Sleep(3 * time.Minute)
		if n := logged.FilterMessage("DNSSEC keys not loaded, keeping those in force").Len(); n != 1 || len(w.tables.DNSSEC(time.Now())[0].Keys) != 3 {
			t.Errorf("told %d times; %s", n, phases(w, time.Now()))
		}

		// The times alone change what signs, and may leave nothing.
		time.Sleep(hour)
		if n := logged.FilterMessage("other DNSSEC keys sign").Len(); n != 2 {
			t.Errorf("told %d times that other keys sign", n)
		}
		for _, k := range w.tables.DNSSEC(time.Now())[0].Keys {
			setTimes(t, strings.TrimSuffix(k.File, ".private"), keyTimes{"Activate": -hour, "Inactive": hour})
		}
		time.Sleep(3 * hour)
		if n := logged.FilterMessage("no DNSSEC key is active, the last go on signing").Len(); n != 1 {
			t.Errorf("told %d times that none is active", n)
		}
	})
}
