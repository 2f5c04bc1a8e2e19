// Command gslb-agent stands at a site beside its load balancer. It reads the load balancer or checks the servers itself,
// measures round trips to the resolvers that gslbd names, and reports to every gslbd.
//
//	gslb-agent --config F          runs
//	gslb-agent check --config F    validates the file, says whether every gslbd and the load balancer can be reached and used
//	gslb-agent once --config F     sends one report and prints the answers; with --dry-run prints the report
//	gslb-agent version
//
// SIGHUP reads the file again: a good one takes the place of the running configuration, a bad one is logged and changes
// nothing. SIGTERM and SIGINT stop it, a second one at once. The exit status is 0 after a stop and when all is well, 1 when it
// cannot run or something fails, 2 for a wrong configuration or wrong usage.
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

func main() { os.Exit(run()) }

// run runs the command and returns the exit status.
func run() int {
	err := command().Execute()
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%v\n", err)
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

func command() *cobra.Command {
	var path string
	usage := func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("gslb-agent: %w\n\n%s", err, cmd.UsageString())}
	}
	// Without this cobra would run the root command for a misspelt one.
	noArgs := func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usage(cmd, fmt.Errorf("%q is not a command", args[0]))
		}
		return nil
	}
	needsConfig := func(cmd *cobra.Command) error {
		if path == "" {
			return usage(cmd, errors.New("--config FILE is required, such as agent.example.yaml"))
		}
		return nil
	}
	root := &cobra.Command{
		Use:           "gslb-agent --config FILE",
		Short:         "reports a site's servers, load and round trips to gslbd",
		Args:          noArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needsConfig(cmd); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal ends the process at once
			hup := make(chan os.Signal, 1)
			signal.Notify(hup, syscall.SIGHUP)
			return serve(ctx, path, hup)
		},
	}
	root.PersistentFlags().StringVar(&path, "config", "", "the agent's configuration file")
	root.SetFlagErrorFunc(usage)
	root.CompletionOptions.DisableDefaultCmd = true
	var dryRun bool
	once := &cobra.Command{
		Use:   "once --config FILE",
		Short: "send one report and print the answers",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needsConfig(cmd); err != nil {
				return err
			}
			p, err := load(path, true)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return p.once(ctx, cmd.OutOrStdout(), dryRun)
		},
	}
	once.Flags().BoolVar(&dryRun, "dry-run", false, "print the report and send nothing")
	root.AddCommand(once, &cobra.Command{
		Use:   "check --config FILE",
		Short: "validate the configuration, and try everything that it names",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needsConfig(cmd); err != nil {
				return err
			}
			p, err := load(path, true)
			if err != nil {
				return err
			}
			for _, w := range p.warnings {
				fmt.Fprintln(cmd.OutOrStdout(), "warning: "+w)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: site %s, %d gslbd, %d virtual servers\n", path, p.site, p.servers, p.virtualServers)
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return p.check(ctx, cmd.OutOrStdout())
		},
	}, &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  noArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), "gslb-agent "+versionText())
		},
	})
	return root
}

func versionText() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return version + " " + info.GoVersion
	}
	return version
}
