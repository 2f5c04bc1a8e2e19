// Command gslbctl shows and steers running gslbd servers over their admin interface.
//
//	gslbctl status [SERVICE]                     everything, what is wrong first; or one service
//	gslbctl explain NAME [--client IP] [--ecs PREFIX] [--type AAAA]
//	gslbctl rtt RESOLVER                         round trips from the sites to a resolver's network
//	gslbctl events [--service GLOB] [--site GLOB] [--since 8h]
//	                                             what happened in the last 24 hours, in order
//	gslbctl reload                               load the configuration again
//	gslbctl force up|drain|down --zone|--site|--service|--member GLOB --reason TEXT [--expires 4h] [--wait]
//	gslbctl clear ID...                          end orders; or those of a target, or --all
//	gslbctl orders                               the orders in force
//	gslbctl evacuate --zone ZONE --reason TEXT [--dry-run] [--stages 25%,50%,100% --pause 5m] [--expires 4h] [--wait]
//	gslbctl restore [--zone ZONE] [--type TYPE]  put back what evacuations took
//	gslbctl evacuations                          how far evacuations are, and what they took
//	gslbctl failback SERVICE                     go back to the primaries (failback: manual)
//	gslbctl drain-status                         what orders keep from clients, and how long caches still name it
//	gslbctl dnssec status                        the keys of signed zones, and the DS records for their parents
//	gslbctl simulate --config FILE               rehearse a configuration and what befalls the sites
//	gslbctl version
//
// With --json it prints an object for each server's answer, one after the other. The exit status is 0 when everything was
// done, 1 when something was refused or failed at any server, 2 for wrong usage. An order goes to all servers under one id,
// so that it is the same order wherever it arrives; each says who has it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"gslbd/admin"
)

// version is set by the linker, see the Makefile.
var version = "unknown"

const defaultServer = "http://127.0.0.1:8053"

// A usageError exits with status 2.
type usageError struct{ error }

// errFailed exits with status 1. What failed was printed already, server by server.
var errFailed = errors.New("failed")

func main() { os.Exit(run()) }

// run runs the command and returns the exit status.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := command().ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFailed):
		return 1
	}
	fmt.Fprintf(os.Stderr, "gslbctl: %v\n", err)
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

// settings are the flags that all commands have.
type settings struct {
	servers              []string
	tokenFile            string
	ca, certificate, key string
	timeout              time.Duration
	json                 bool

	author  string // of the order; only commands that give one have the flag
	reason  string
	waiting bool // --wait
}

const (
	// requestTimeout is how long a server may take, and how long it may at a time while waiting.
	requestTimeout = 10 * time.Second
	// waitTimeout is how long --wait waits unless told otherwise.
	waitTimeout = time.Hour
)

func command() *cobra.Command {
	set := new(settings)
	root := &cobra.Command{
		Use:   "gslbctl",
		Short: "shows and steers gslbd",
		Long: "Shows and steers gslbd. An order goes to every --server under one id; each says who has it.\n\n" +
			"With --json every command prints one object for each answer of a server, one after the other, as jq reads them\n" +
			"(jq -s . makes a list): \"server\", and beside it the fields of the answer, or \"error\". clear asks each server for\n" +
			"each order, so it prints one for each of both; where nothing is to be cleared it prints nothing.\n\n" +
			"Exit status: 0 done, 1 refused or failed at any server, 2 wrong usage.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          exactly(),

		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usage(cmd, errors.New("which command?"))
		},
	}
	flags := root.PersistentFlags()
	flags.StringArrayVar(&set.servers, "server", nil, "URL of a gslbd's admin.listen; may repeat (environment GSLBCTL_SERVER, separated by commas; default "+defaultServer+")")
	flags.StringVar(&set.tokenFile, "token-file", "", "file that holds the token of admin.token_file; not needed on the same machine (environment GSLBCTL_TOKEN_FILE)")
	flags.StringVar(&set.ca, "ca", "", "file with the certificate of the authority that signs the servers' certificates, for https (environment GSLBCTL_CA)")
	flags.StringVar(&set.certificate, "certificate", "", "file with the client certificate to show, for https (environment GSLBCTL_CERTIFICATE)")
	flags.StringVar(&set.key, "key", "", "file with the key of --certificate (environment GSLBCTL_KEY)")
	flags.DurationVar(&set.timeout, "timeout", requestTimeout, "how long a server may take; with --wait, how long to wait in all (then 1h by default)")
	flags.BoolVar(&set.json, "json", false, "print JSON: an object for each server's answer (gslbctl --help)")
	root.SetFlagErrorFunc(usage)

	status := &cobra.Command{
		Use:               "status [SERVICE]",
		Short:             "show services, members and sites, what is wrong first; or one service",
		Args:              atMost("SERVICE"),
		ValidArgsFunction: completeOne(set, services),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return ask(cmd, set, http.MethodGet, "/v1/services/"+url.PathEscape(args[0]), named(set, showService))
			}
			return ask(cmd, set, http.MethodGet, "/v1/status", showStatus)
		},
	}
	reload := &cobra.Command{
		Use:   "reload",
		Short: "load the configuration again; one that is wrong changes nothing",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, set, http.MethodPost, "/v1/reload", showReload)
		},
	}
	rtt := &cobra.Command{
		Use:   "rtt RESOLVER",
		Short: "show the round trips from the sites to a resolver's network",
		Args:  exactly("RESOLVER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := netip.ParseAddr(args[0]); err != nil {
				return usage(cmd, fmt.Errorf("RESOLVER: %q is not an IP address", args[0]))
			}
			return ask(cmd, set, http.MethodGet, "/v1/rtt?"+url.Values{"resolver": args}.Encode(), named(set, showRTT))
		},
	}
	root.AddCommand(status, explainCommand(set), rtt, eventsCommand(set), reload,
		forceCommand(set), clearCommand(set), ordersCommand(set),
		evacuateCommand(set), restoreCommand(set), evacuationsCommand(set),
		failbackCommand(set), drainStatusCommand(set), dnssecCommand(set), simulateCommand(set))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				if found, _, _ := root.Find(args); found == root && len(args) > 0 {
					return exactly()(root, args)
				}
				return nil
			}
		case "completion":
			cmd.Args = nil
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				return usage(cmd, errors.New("for which shell? bash, zsh, fish or powershell"))
			}
		}
	}
	root.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := version
			if info, ok := debug.ReadBuildInfo(); ok {
				v += " " + info.GoVersion
			}
			if set.json {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]string{"version": v})
			}
			fmt.Fprintln(cmd.OutOrStdout(), "gslbctl "+v)
			return nil
		},
	})
	return root
}

func explainCommand(set *settings) *cobra.Command {
	var client, ecs, kind string
	cmd := &cobra.Command{
		Use:               "explain NAME",
		Short:             "show how a query for NAME would be decided now, metric by metric",
		Args:              exactly("NAME"),
		ValidArgsFunction: completeOne(set, services),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{"name": args}
			for name, value := range map[string]string{"client": client, "ecs": ecs, "type": kind} {
				if value != "" {
					query.Set(name, value)
				}
			}
			return ask(cmd, set, http.MethodGet, "/v1/explain?"+query.Encode(), named(set, showExplanation))
		},
	}
	cmd.Flags().StringVar(&client, "client", "", "address of the resolver that asks (default: this machine as the server sees it)")
	cmd.Flags().StringVar(&ecs, "ecs", "", "client subnet that the resolver passes on, such as 203.0.113.0/24")
	cmd.Flags().StringVar(&kind, "type", "A", "A or AAAA")
	return cmd
}

// usage says what is wrong with a command line, and where one reads what is right.
func usage(cmd *cobra.Command, err error) error {
	return usageError{fmt.Errorf("%w\nsee %s --help", err, cmd.CommandPath())}
}

// exactly accepts as many arguments as there are names.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch empty := slices.Index(args, ""); {
		case empty >= 0 && empty < len(names):
			return usage(cmd, fmt.Errorf("%s is empty", names[empty]))
		case len(args) < len(names):
			return usage(cmd, fmt.Errorf("%s is missing", names[len(args)]))
		case len(args) > len(names) && !cmd.HasParent():
			err := fmt.Errorf("%q is not a command", args[0])
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				err = fmt.Errorf("%w: did you mean %s?", err, strings.Join(near, " or "))
			}
			return usage(cmd, err)
		case len(args) > len(names):
			return usage(cmd, fmt.Errorf("%q is one argument too many", args[len(names)]))
		}
		return nil
	}
}

// atMost accepts as many arguments as there are names, or fewer.
func atMost(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		return exactly(names[:min(len(args), len(names))]...)(cmd, args)
	}
}

// addresses returns the servers to ask.
func (set *settings) addresses() ([]string, error) {
	servers := set.servers
	if len(servers) == 0 {
		for s := range strings.SplitSeq(os.Getenv("GSLBCTL_SERVER"), ",") {
			if s = strings.TrimSpace(s); s != "" {
				servers = append(servers, s)
			}
		}
	}
	if len(servers) == 0 {
		servers = []string{defaultServer}
	}
	urls := make([]string, len(servers))
	for i, s := range servers {
		full := s
		if !strings.Contains(s, "://") {
			full = "http://" + s
		}
		u, err := url.Parse(full)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
			return nil, fmt.Errorf("--server: %q is not a URL such as %s", s, defaultServer)
		}
		urls[i] = u.Scheme + "://" + u.Host
	}
	return urls, nil
}

// ask sends one request to every server and prints every answer in turn. show renders a good one for people.
func ask[T any](cmd *cobra.Command, set *settings, method, path string, show func(server string, v T) string) error {
	servers, c, err := set.connect()
	if err != nil {
		return err
	}
	defer c.http.CloseIdleConnections()
	var body any
	if method != http.MethodGet {
		body = struct{}{}
	}
	return present(cmd, set, c.all(cmd.Context(), servers, method, path, body), show)
}

// named writes whose answer it is above what show renders, where several servers are asked.
func named[T any](set *settings, show func(server string, v T) string) func(server string, v T) string {
	return func(server string, v T) string {
		text := show(server, v)
		if servers, _ := set.addresses(); len(servers) > 1 {
			text = server + "\n" + text
		}
		return text
	}
}

// connect returns the servers to ask, and what asks them.
func (set *settings) connect() ([]string, *client, error) {
	servers, err := set.addresses()
	if err != nil {
		return nil, nil, usageError{err}
	}
	c, err := newClient(set)
	return servers, c, err
}

// printf prints for people. What servers and sites say of themselves must not steer the terminal.
func printf(w io.Writer, format string, args ...any) {
	_, _ = io.WriteString(w, strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, fmt.Sprintf(format, args...)))
}

func showReload(server string, v admin.Reloaded) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: reloaded\n", server)
	for _, w := range v.Warnings {
		b.WriteString(wrap("  warning: ", w))
	}
	return b.String()
}
