// Command gslbd is an authoritative DNS server for global server load balancing.
//
//	gslbd --config F          serves
//	gslbd check --config F    validates the configuration, zones and databases, runs its tests (--tests=false: not), and says all that is wrong
//	gslbd keygen --zone Z --directory D   makes a DNSSEC key
//	gslbd version
//
// SIGHUP reloads the configuration; SIGUSR2 starts the program anew, which takes over without losing a query; SIGTERM and SIGINT stop: readiness fails first, then after dns.drain_time the sockets
// close. The exit status is 0 after a stop, 1 when it cannot run, 2 for a wrong configuration or wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker, see the Makefile.
var version = "unknown"

// A usageError exits with status 2: the command or the configuration is wrong.
type usageError struct{ error }

func main() {
	err := command().Execute()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "%v\n", err)
	if errors.As(err, new(usageError)) {
		os.Exit(2)
	}
	os.Exit(1)
}

func command() *cobra.Command {
	var path string
	root := &cobra.Command{
		Use:           "gslbd --config FILE",
		Short:         "authoritative DNS server for global server load balancing",
		Args:          noArguments,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return usageError{errors.New("gslbd: --config FILE is required, such as config.example.yaml")}
			}
			return serve(path)
		},
	}
	root.PersistentFlags().StringVar(&path, "config", "", "the configuration file")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("gslbd: %w\n\n%s", err, cmd.UsageString())}
	})
	var runTests bool
	check := &cobra.Command{
		Use:   "check --config FILE",
		Short: "validate the configuration, zones and databases, and run its tests",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return usageError{errors.New("gslbd: --config FILE is required")}
			}
			g, db, err := load(path, nil)
			if err != nil {
				return usageError{err}
			}
			var failed []string
			if runTests {
				if failed, err = failedTests(g.config, db); err != nil {
					return err
				}
			}
			for _, w := range g.warnings {
				fmt.Fprintln(cmd.OutOrStdout(), "warning: "+w)
			}
			if len(failed) > 0 {
				for _, f := range failed {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", path, f)
				}
				return usageError{fmt.Errorf("%s: %d of %d tests fail", path, len(failed), len(g.config.Tests))}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: %d zones, %d sites, %d services", path, len(g.config.Zones), len(g.config.Sites), len(g.config.Services))
			if n := len(g.config.Tests); n > 0 && runTests {
				fmt.Fprintf(cmd.OutOrStdout(), "; %d tests pass", n)
			}
			fmt.Fprintln(cmd.OutOrStdout())
			return nil
		},
	}
	check.Flags().BoolVar(&runTests, "tests", true, "run the tests of the configuration, which a start or a reload does not")
	root.AddCommand(check, keygenCommand(), &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  noArguments,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), "gslbd "+versionText())
		},
	})
	root.CompletionOptions.DisableDefaultCmd = true
	return root
}

// noArguments refuses words that are no command and no flag.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usageError{fmt.Errorf("gslbd: unknown command or argument %q\n\n%s", args[0], cmd.UsageString())}
}

func versionText() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return version + " " + info.GoVersion
	}
	return version
}

// serve runs the server on the configuration at path until a signal stops it.
func serve(path string) error {
	signals := make(chan os.Signal, 2) // before the databases are read, which takes a while: neither must end the process
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGUSR2)
	h, err := takeHanded()
	if err != nil {
		return err
	}
	percent := debug.SetGCPercent(startGC)
	g, db, err := load(path, nil)
	if err != nil {
		return usageError{err}
	}
	s, err := newServer(path, g, db, h)
	debug.SetGCPercent(percent)
	if err != nil {
		return err
	}
	evenProcs()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the process at once
	}()
	return s.run(ctx, signals)
}
