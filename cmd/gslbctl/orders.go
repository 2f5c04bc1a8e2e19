package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"gslbd/admin"
	"gslbd/control"
)

// orderFlags adds the flags of a command that gives an order.
func orderFlags(cmd *cobra.Command, set *settings, why string) {
	cmd.Flags().StringVar(&set.reason, "reason", "", why)
	cmd.Flags().StringVar(&set.author, "author", "", "who gives the order (default: you, at this machine)")
}

// stamp returns what every order has: an id, which is the same at all servers, when it was given, and by whom.
func (set *settings) stamp() (id string, created time.Time, author string, err error) {
	v7, err := uuid.NewV7()
	if err != nil {
		return "", time.Time{}, "", err
	}
	author = set.author
	if author == "" {
		author = cmp.Or(os.Getenv("SUDO_USER"), os.Getenv("USER"), "uid "+strconv.Itoa(os.Getuid()))
		if host, err := os.Hostname(); err == nil {
			author += "@" + host
		}
	}
	return v7.String(), time.Now().UTC().Truncate(time.Millisecond), author, nil
}

// until reads --expires.
func until(created time.Time, expires time.Duration) (time.Time, error) {
	switch {
	case expires < 0:
		return time.Time{}, usageError{fmt.Errorf("--expires: %s is not above 0", expires)}
	case expires == 0:
		return time.Time{}, nil
	}
	return created.Add(expires), nil
}

// targetFlags adds the flags that say what an order is for.
func targetFlags(cmd *cobra.Command, set *settings, t *control.Target) {
	cmd.Flags().StringVar(&t.Service, "service", "", "every member of the services of this name (or of a pattern such as '*.example.com')")
	cmd.Flags().StringVar(&t.Member, "member", "", "the members of this name, or SERVICE/MEMBER (or a pattern)")
	cmd.Flags().StringVar(&t.Site, "site", "", "every member at the sites of this name (or a pattern)")
	cmd.Flags().StringVar(&t.Zone, "zone", "", "every member at the sites of the zones of this name (or a pattern)")
	for name, names := range map[string]completer{"service": services, "member": members, "site": sites, "zone": zones} {
		_ = cmd.RegisterFlagCompletionFunc(name, complete(set, names)) // fails only for a flag that is not there
	}
}

// targetFlag returns the flag that stands for a target, and its value.
func targetFlag(t control.Target) (flag, value string) {
	switch {
	case t.Service != "":
		return "--service", t.Service
	case t.Member != "":
		return "--member", t.Member
	case t.Site != "":
		return "--site", t.Site
	}
	return "--zone", t.Zone
}

// given returns how many kinds of target are set.
func given(t control.Target) int {
	n := 0
	for _, v := range []string{t.Service, t.Member, t.Site, t.Zone} {
		if v != "" {
			n++
		}
	}
	return n
}

func targetText(t control.Target) string {
	flag, value := targetFlag(t)
	return strings.TrimPrefix(flag, "--") + " " + value
}

func forceCommand(set *settings) *cobra.Command {
	var o control.Order
	var expires time.Duration
	cmd := &cobra.Command{
		Use:   "force up|drain|down",
		Short: "force members up, to drain or down, whatever is measured",
		Long: "Force members of a service, site or zone up, to drain or down, whatever is measured.\n\n" +
			"drain: they get no new clients while others are up. down: they are never answered. up: what is measured is\noverridden; an order to drain or down still wins.",
		Args:      exactly("up, drain or down"),
		ValidArgs: []string{control.Up, control.Drain, control.Down},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Action = args[0]
			switch {
			case !slices.Contains([]string{control.Up, control.Drain, control.Down}, o.Action):
				return usage(cmd, fmt.Errorf("%q is neither up, drain nor down", o.Action))
			case given(o.Target) != 1:
				return usage(cmd, errors.New("for what? give one of --service, --member, --site and --zone"))
			case o.Action == control.Up && set.waiting:
				return usage(cmd, errors.New("--wait: there is nothing to wait for when members are forced up"))
			case set.reason == "":
				return usage(cmd, errors.New("--reason is missing: who reads it at night will want to know"))
			}
			var err error
			if o.ID, o.Created, o.Author, err = set.stamp(); err != nil {
				return err
			}
			o.Reason = set.reason
			if o.Expires, err = until(o.Created, expires); err != nil {
				return err
			}
			head := fmt.Sprintf("order %s: force %s %s", o.ID, targetText(o.Target), o.Action)
			if expires > 0 {
				head += ", for " + span(expires)
			}
			return set.give(cmd, http.MethodPost, "/v1/orders", o, head, []string{"clear", o.ID}, func(w *waiter, r receipts) error {
				return w.cached(cmd.Context(), r, o)
			})
		},
	}
	targetFlags(cmd, set, &o.Target)
	orderFlags(cmd, set, "why, for whoever reads it later (required)")
	cmd.Flags().DurationVar(&expires, "expires", 0, "end the order by itself after this time, such as 4h")
	cmd.Flags().BoolVar(&set.waiting, "wait", false, "wait until no cached answer names the members any more")
	return cmd
}

// give sends an order to every server at once and says who has it. undo is the command that takes it back, if there is
// one; wait is what --wait waits for at the servers that have the order.
func (set *settings) give(cmd *cobra.Command, method, path string, body any, head string, undo []string, wait func(w *waiter, r receipts) error) error {
	servers, c, err := set.connect()
	if err != nil {
		return err
	}
	defer c.http.CloseIdleConnections()
	return set.given(cmd, c, c.all(cmd.Context(), servers, method, path, body), head, undo, wait)
}

// receipts are the receipts of the servers that have an order, by server.
type receipts map[string]control.Receipt

// given reports what became of an order. head, which tells its id, is only for one that a server has, or may have.
func (set *settings) given(cmd *cobra.Command, c *client, results []result, head string, undo []string, wait func(w *waiter, r receipts) error) error {
	accepted := receipts{}
	unsure := false
	read := slices.Clone(results)
	idle := false // a server has nothing to do for it
	for i, r := range decode[reply](read) {
		switch {
		case read[i].err == nil && r.Nothing.Nothing != "":
			idle = true
		case read[i].err == nil:
			accepted[read[i].server] = r.Receipt
		}
		unsure = unsure || results[i].err == nil && read[i].err != nil || errors.As(results[i].err, new(unsureError))
	}
	if !set.json && len(accepted) > 0 {
		printf(cmd.OutOrStdout(), "%s\n", head)
	}
	err := present(cmd, set, results, showReply)
	switch {
	case len(accepted) == 0 && idle && !unsure:
		return err
	case len(accepted) == 0 && unsure:
		return fmt.Errorf("this may have been done or not, since an answer is missing: %s", head)
	case len(accepted) == 0:
		return errors.New("nothing has changed")
	case undo != nil && !set.json:
		printf(cmd.OutOrStdout(), "to undo: %s\n", set.commandLine(undo...))
	}
	if set.waiting && wait != nil {
		if failed := wait(newWaiter(cmd, set, c), accepted); failed != nil {
			return failed
		}
	}
	return err
}

// A reply is the answer to an order: a receipt, or why there is nothing to do.
type reply struct {
	control.Receipt
	admin.Nothing
}

func showReply(server string, r reply) string {
	if r.Nothing.Nothing != "" {
		return fmt.Sprintf("  %s: nothing to restore: %s\n", server, r.Nothing.Nothing)
	}
	what := "accepted"
	if r.Repeated {
		what = "known already"
	}
	shared := map[string]string{"etcd": ", shared by etcd", "not shared": ", on this gslbd only: no etcd shares orders"}
	text, ok := shared[r.Shared]
	if !ok {
		text = ", " + r.Shared
	}
	var b strings.Builder
	b.WriteString(wrap("  ", fmt.Sprintf("%s (%s): %s%s", server, r.Node, what, text)))
	writeList(&b, "    warning: ", r.Warnings)
	return b.String()
}

// commandLine writes a command as one would type it, with the flags that say where and as whom.
func (set *settings) commandLine(args ...string) string {
	line := []string{"gslbctl"}
	for _, a := range args {
		line = append(line, quoted(a))
	}
	for _, s := range set.servers {
		line = append(line, "--server", quoted(s))
	}
	for _, f := range [][2]string{{"--token-file", set.tokenFile}, {"--ca", set.ca}, {"--certificate", set.certificate}, {"--key", set.key}} {
		if f[1] != "" {
			line = append(line, f[0], quoted(f[1]))
		}
	}
	return strings.Join(line, " ")
}

// quoted writes an argument for a shell.
func quoted(arg string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%,=+", r)
	}
	if arg != "" && !strings.ContainsFunc(arg, func(r rune) bool { return !plain(r) }) {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}

func ordersCommand(set *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "orders",
		Short: "show the orders in force",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, set, http.MethodGet, "/v1/orders", showOrders)
		},
	}
}

func clearCommand(set *settings) *cobra.Command {
	var target control.Target
	var every bool
	cmd := &cobra.Command{
		Use:               "clear [ID...]",
		Short:             "end orders: those given by id, those of a target, or all",
		Long:              "End orders: those given by id (or the part of an id that only one has), those of exactly a target, or all.\nEvacuations are ended by restore.",
		ValidArgsFunction: complete(set, orderIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			ways := given(target)
			if len(args) > 0 {
				ways++
			}
			if every {
				ways++
			}
			if ways != 1 {
				return usage(cmd, errors.New("which? give ids, one of --service, --member, --site and --zone, or --all"))
			}
			return set.clear(cmd, args, target)
		},
	}
	targetFlags(cmd, set, &target)
	orderFlags(cmd, set, "why")
	cmd.Flags().BoolVar(&every, "all", false, "every order that any of the servers has in force")
	return cmd
}

// clear ends the orders with these ids, else those of the target, else all.
func (set *settings) clear(cmd *cobra.Command, ids []string, target control.Target) error {
	servers, c, err := set.connect()
	if err != nil {
		return err
	}
	defer c.http.CloseIdleConnections()
	known := map[string]control.Order{}
	var order []string // ids, as listed
	listed := c.all(cmd.Context(), servers, http.MethodGet, "/v1/orders", nil)
	var away []result // servers whose orders are not known
	for i, l := range decode[admin.OrderList](listed) {
		if listed[i].err != nil {
			away = append(away, listed[i])
		}
		for _, o := range l.Orders {
			if _, ok := known[o.ID]; !ok {
				known[o.ID] = o.Order
				order = append(order, o.ID)
			}
		}
	}
	if len(away) == len(servers) {
		return present(cmd, set, listed, func(string, admin.OrderList) string { return "" })
	}
	named := len(ids) > 0
	if named {
		for i, id := range ids {
			if ids[i], err = whole(id, order); err != nil {
				return err
			}
		}
	} else {
		for _, id := range order {
			if target == (control.Target{}) || known[id].Target == target {
				ids = append(ids, id)
			}
		}
		if len(ids) == 0 && len(away) == 0 && target != (control.Target{}) {
			return fmt.Errorf("no order for %s is in force: see %s", targetText(target), set.commandLine("orders"))
		}
	}
	_, created, author, err := set.stamp()
	if err != nil {
		return err
	}
	var all []result
	if named {
		away = nil // it is asked to end what is named, whatever it has
	}
	for _, r := range away {
		servers = slices.DeleteFunc(servers, func(s string) bool { return s == r.server })
		all = append(all, r)
		if !set.json {
			printf(cmd.ErrOrStderr(), "gslbctl: %s: %v\n", r.server, r.err)
			err = errFailed
		}
	}
	for _, id := range ids {
		var lacking []string
		results := c.all(cmd.Context(), servers, http.MethodDelete, "/v1/orders/"+url.PathEscape(id),
			control.Tombstone{ID: id, Created: created, Author: author, Reason: set.reason})
		if slices.ContainsFunc(results, func(r result) bool { return r.err == nil }) {
			// A server that never had the order has nothing to end.
			results = slices.DeleteFunc(results, func(r result) bool {
				without := refusedWith(r.err, http.StatusNotFound)
				if without {
					lacking = append(lacking, r.server)
				}
				return without
			})
		}
		if set.json {
			all = append(all, results...)
			continue
		}
		never := ""
		if len(lacking) > 0 {
			never = ", which " + strings.Join(lacking, ", ") + " never had"
		}
		o, isKnown := known[id]
		head := "end of order " + id + never
		var undo []string
		if isKnown {
			flag, value := targetFlag(o.Target)
			head += fmt.Sprintf(": %s is not forced %s by it any more", targetText(o.Target), o.Action)
			undo = []string{"force", o.Action, flag, value, "--reason", o.Reason}
			if left := time.Until(o.Expires).Truncate(time.Minute); !o.Expires.IsZero() && left > 0 {
				undo = append(undo, "--expires", left.String())
			}
		}
		if e := set.given(cmd, c, results, head, undo, nil); e != nil {
			err = errFailed
			if !errors.Is(e, errFailed) {
				printf(cmd.ErrOrStderr(), "gslbctl: order %s: %v\n", id, e)
			}
		}
	}
	switch {
	case set.json:
		return present(cmd, set, all, showReply)
	case len(ids) == 0 && err == nil:
		printf(cmd.OutOrStdout(), "No order is in force.\n")
	}
	return err
}

// whole returns the id of which a part is given: the beginning or the end, at least 6 characters. One that nobody lists
// stands for itself, since a server may have ended it already.
func whole(part string, ids []string) (string, error) {
	const least = 6
	if slices.Contains(ids, part) || uuid.Validate(part) == nil {
		return part, nil
	}
	if len(part) < least {
		return "", usageError{fmt.Errorf("%q is not an id, and too short to be a part of one", part)}
	}
	var found []string
	for _, id := range ids {
		if strings.HasPrefix(id, part) || strings.HasSuffix(id, part) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("no order with the id %q is in force: see gslbctl orders", part)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%q is a part of several ids: %s", part, strings.Join(found, ", "))
}

func failbackCommand(set *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "failback SERVICE",
		Short:             "go back to the primaries of a service of failback: manual",
		Args:              exactly("SERVICE"),
		ValidArgsFunction: completeOne(set, services),
		RunE: func(cmd *cobra.Command, args []string) error {
			f := control.Failback{Service: args[0], Reason: set.reason}
			var err error
			if f.ID, f.Created, f.Author, err = set.stamp(); err != nil {
				return err
			}
			if err := set.sufficient(cmd, f.Service); err != nil {
				return err
			}
			return set.give(cmd, http.MethodPost, "/v1/failback", f, "failback of "+f.Service, nil, func(w *waiter, r receipts) error {
				return w.primaries(cmd.Context(), r, f.Service)
			})
		},
	}
	orderFlags(cmd, set, "why")
	cmd.Flags().BoolVar(&set.waiting, "wait", false, "wait until the primaries answer")
	return cmd
}

// sufficient fails if the primaries of the service do not suffice at one of several servers: the others would go back
// without it, and their clients to other members than its own. What a single server thinks it says itself.
func (set *settings) sufficient(cmd *cobra.Command, service string) error {
	servers, c, err := set.connect()
	if err != nil || len(servers) < 2 {
		return err
	}
	defer c.http.CloseIdleConnections()
	results := c.all(cmd.Context(), servers, http.MethodGet, "/v1/services/"+url.PathEscape(service), nil)
	var errs []error
	for i, svc := range decode[admin.Service](results) {
		if results[i].err == nil && svc.Failback == "manual" && svc.Pool == "backup" && !svc.Held {
			errs = append(errs, fmt.Errorf("%s: the primaries of %s do not suffice: %s", results[i].server, svc.Name, svc.PoolWhy))
		}
	}
	if len(errs) > 0 {
		errs = append(errs, errors.New("failback was ordered nowhere, since the servers would differ"))
	}
	return errors.Join(errs...)
}

func drainStatusCommand(set *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "drain-status",
		Short: "show the members that orders keep from clients, and how long cached answers still name them",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, set, http.MethodGet, "/v1/drains", showDrains)
		},
	}
}

// cached waits until no cached answer names a member of the order any more, at any of the servers. It fails when the
// order ends before.
func (w *waiter) cached(ctx context.Context, r receipts, o control.Order) error {
	return waitFor(ctx, w, r, "/v1/drains", func(server string, l admin.DrainList) (string, error) {
		// After the drains: an order that is in force now was so when they were listed.
		_, err := w.client.do(ctx, http.MethodGet, server+"/v1/orders/"+url.PathEscape(o.ID), nil)
		switch {
		case refusedWith(err, http.StatusNotFound):
			return "", overError{fmt.Errorf("order %s is over: somebody cleared it, or it has expired", o.ID)}
		case err != nil:
			return "", err
		}
		drains := slices.Clone(l.Drains)
		drains = slices.DeleteFunc(drains, func(d admin.Drain) bool { return !targeted(o.Target, &d) })
		if len(drains) == 0 {
			drains = l.Drains // the target goes by another name, an alias
		}
		var last admin.Drain
		for _, d := range drains {
			if d.SecondsLeft >= last.SecondsLeft && d.SecondsLeft > 0 {
				last = d
			}
		}
		if last.SecondsLeft == 0 {
			return "", nil
		}
		return fmt.Sprintf("cached answers with %s/%s run out in %s", last.Service, last.Member, span(seconds(last.SecondsLeft))), nil
	})
}

// targeted reports whether a member is of the target by its own names.
func targeted(t control.Target, d *admin.Drain) bool {
	is := func(pattern, name string) bool {
		ok, err := path.Match(pattern, name)
		return pattern != "" && ok && err == nil
	}
	return is(strings.ToLower(strings.TrimSuffix(t.Service, ".")), d.Service) || is(t.Member, d.Member) || is(t.Member, d.Service+"/"+d.Member) ||
		is(t.Site, d.Site) || is(t.Zone, d.Zone)
}

// primaries waits until the primaries of the service answer, at all of the servers.
func (w *waiter) primaries(ctx context.Context, r receipts, service string) error {
	return waitFor(ctx, w, r, "/v1/services/"+url.PathEscape(service), func(_ string, svc admin.Service) (string, error) {
		if svc.Pool == "primary" {
			return "", nil
		}
		return "its backups answer: " + cmp.Or(svc.HeldWhy, svc.PoolWhy), nil
	})
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
