package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gslbd/admin"
	"gslbd/control"
)

func evacuateCommand(set *settings) *cobra.Command {
	var call admin.EvacuationCall
	var stages []string
	var pause, expires time.Duration
	cmd := &cobra.Command{
		Use:   "evacuate",
		Short: "take everything that stands in a zone out of service",
		Long: "Take everything that stands in a zone out of service: its members, then with --type agent the servers behind them,\n" +
			"then with --type exec what the operator's program lists. The forecast comes first: what clients would be answered and\n" +
			"how loaded the sites that are left would be. restore puts back exactly what was taken.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case call.Zone == "":
				return usage(cmd, errors.New("--zone is missing: which one?"))
			case set.reason == "" && !call.DryRun:
				return usage(cmd, errors.New("--reason is missing: who reads it at night will want to know"))
			case set.waiting && call.DryRun:
				return usage(cmd, errors.New("--wait: a dry run changes nothing that could be waited for"))
			case pause < 0:
				return usage(cmd, fmt.Errorf("--pause: %s is not above 0", pause))
			case pause > 0 && len(stages) == 0:
				return usage(cmd, errors.New("--pause goes with --stages"))
			}
			err := knownTypes(call.Types...)
			if err != nil {
				return usage(cmd, err)
			}
			if call.Stages, err = shares(stages); err != nil {
				return usage(cmd, err)
			}
			call.PauseMS = pause.Milliseconds()
			if call.ID, call.Created, call.Author, err = set.stamp(); err != nil {
				return err
			}
			if call.Expires, err = until(call.Created, expires); err != nil {
				return err
			}
			call.Reason = cmp.Or(set.reason, "dry run")
			return set.evacuate(cmd, call)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&call.Zone, "zone", "", "the zone, by its id or one of its names in zone_aliases (required)")
	flags.StringSliceVar(&call.Types, "type", []string{control.TypeMember}, "what to take: member, agent, exec")
	flags.BoolVar(&call.DryRun, "dry-run", false, "only show what it would do, and change nothing")
	flags.StringSliceVar(&stages, "stages", nil, "move clients away in steps, such as 25%,50%,100%")
	flags.DurationVar(&pause, "pause", 0, "time between the steps, such as 5m")
	flags.DurationVar(&expires, "expires", 0, "restore by itself after this time, such as 4h")
	flags.BoolVar(&call.Force, "force", false, "even if a service keeps fewer than min_serving members that are up")
	flags.BoolVar(&set.waiting, "wait", false, "wait until everything is evacuated")
	orderFlags(cmd, set, "why, for whoever reads it later (required)")
	_ = cmd.RegisterFlagCompletionFunc("zone", complete(set, zones))
	_ = cmd.RegisterFlagCompletionFunc("type", completeTypes)
	return cmd
}

var completeTypes = cobra.FixedCompletions([]string{control.TypeMember, control.TypeAgent, control.TypeExec}, cobra.ShellCompDirectiveNoFileComp)

func knownTypes(types ...string) error {
	for _, t := range types {
		if t != control.TypeMember && t != control.TypeAgent && t != control.TypeExec {
			return fmt.Errorf("--type: %q is neither member, agent nor exec", t)
		}
	}
	return nil
}

// shares reads --stages.
func shares(stages []string) ([]float64, error) {
	var list []float64
	for _, s := range stages {
		number, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
		v, err := strconv.ParseFloat(number, 64)
		if err != nil || !percent || !(v > 0 && v <= 100) {
			return nil, fmt.Errorf("--stages: %q is not a percentage such as 25%%, above 0%% and at most 100%%", s)
		}
		list = append(list, v/100)
	}
	return list, nil
}

// evacuate shows the forecast, then gives the order unless a server would refuse it.
func (set *settings) evacuate(cmd *cobra.Command, call admin.EvacuationCall) error {
	servers, c, err := set.connect()
	if err != nil {
		return err
	}
	defer c.http.CloseIdleConnections()
	dry := call
	dry.DryRun = true
	previews := c.all(cmd.Context(), servers, http.MethodPost, "/v1/evacuations", dry)
	refused := false
	for i, p := range decode[admin.Preview](slices.Clone(previews)) {
		refused = refused || previews[i].err == nil && len(p.Plan.Refusals) > 0 && !call.Force ||
			refusedWith(previews[i].err, http.StatusBadRequest, http.StatusNotFound, http.StatusConflict)
	}
	if call.DryRun || refused {
		err := present(cmd, set, previews, showPreview)
		switch {
		case err == nil && refused && call.DryRun:
			return errors.New("it would be refused")
		case refused && !call.DryRun:
			return errors.New("nothing was evacuated, anywhere: a server refuses it")
		}
		return err
	}
	// The servers of a fleet say the same of it, or nearly so: one forecast is enough to read.
	shown := false
	for i, p := range decode[admin.Preview](previews) {
		if previews[i].err == nil && !shown && !set.json {
			printf(cmd.OutOrStdout(), "%s\n", showPreview(previews[i].server, p))
			shown = true
		}
	}
	if !shown && !set.json {
		printf(cmd.OutOrStdout(), "There is no forecast, since no server answered in time.\n\n")
	}

	results, execution := set.send(cmd.Context(), c, servers, call)
	if execution != "" {
		printf(cmd.ErrOrStderr(), "gslbctl: %s\n", execution)
	}
	undo := []string{"restore", "--zone", call.Zone}
	if len(call.Types) == 1 {
		undo = append(undo, "--type", call.Types[0])
	}
	err = set.given(cmd, c, results, fmt.Sprintf("evacuation %s: zone %s, %s", call.ID, call.Zone, strings.Join(call.Types, ", ")), undo,
		func(w *waiter, r receipts) error { return w.evacuated(cmd.Context(), r) })
	if err == nil && execution != "" {
		return errFailed
	}
	return err
}

// send gives the evacuation to all servers. The first that accepts it runs the operator's program, and no other. When
// it is not known whether a server has accepted, no other is asked to run the program: it could run twice. unsure then
// says so.
func (set *settings) send(ctx context.Context, c *client, servers []string, call admin.EvacuationCall) (results []result, unsure string) {
	const path = "/v1/evacuations"
	if slices.Contains(call.Types, control.TypeExec) {
		for i, server := range servers {
			call.Execute = true
			body, err := c.do(ctx, http.MethodPost, server+path, call)
			results = append(results, result{server, body, err})
			if errors.As(err, new(unsureError)) {
				unsure = server + " may or may not run the program, since its answer is missing; no other server was asked to. See gslbctl evacuations."
			}
			if err == nil || unsure != "" {
				call.Execute = false
				return append(results, c.all(ctx, servers[i+1:], http.MethodPost, path, call)...), unsure
			}
		}
		return results, ""
	}
	return c.all(ctx, servers, http.MethodPost, path, call), ""
}

func evacuationsCommand(set *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "evacuations",
		Short: "show the evacuations, how far they are, and the ledger of what they took",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, set, http.MethodGet, "/v1/evacuations", showEvacuations)
		},
	}
}

func restoreCommand(set *settings) *cobra.Command {
	var r control.RestorationRequest
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "put back exactly what evacuations took",
		Long:  "Put back exactly what evacuations took, of one zone or all, of one type or all, the last taken first. What operators\nchanged meanwhile stays.",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r.Reason = set.reason
			if r.Type != "" {
				if err := knownTypes(r.Type); err != nil {
					return usage(cmd, err)
				}
			}
			var err error
			if r.ID, r.Created, r.Author, err = set.stamp(); err != nil {
				return err
			}
			zone := "all zones"
			if r.Zone != "" {
				zone = "zone " + r.Zone
			}
			head := fmt.Sprintf("restoration %s: %s, %s", r.ID, zone, cmp.Or(r.Type, "all types"))
			return set.give(cmd, http.MethodPost, "/v1/restorations", r, head, nil, func(w *waiter, got receipts) error {
				if err := w.restored(cmd.Context(), got, r); err != nil {
					return err
				}
				return set.tellLatched(cmd, w.client, got)
			})
		},
	}
	cmd.Flags().StringVar(&r.Zone, "zone", "", "the zone (default: all)")
	cmd.Flags().StringVar(&r.Type, "type", "", "what to put back: member, agent or exec (default: all)")
	cmd.Flags().BoolVar(&set.waiting, "wait", false, "wait until the ledger has nothing of it any more")
	orderFlags(cmd, set, "why")
	_ = cmd.RegisterFlagCompletionFunc("zone", complete(set, taken))
	_ = cmd.RegisterFlagCompletionFunc("type", completeTypes)
	return cmd
}

// evacuated waits until every part of the evacuation is evacuated, at all of the servers; the operator's program, which
// one of them runs, at that one. It fails when the evacuation ends before.
func (w *waiter) evacuated(ctx context.Context, r receipts) error {
	executed := false
	return waitFor(ctx, w, r, "/v1/evacuations", func(server string, l admin.EvacuationList) (string, error) {
		i := slices.IndexFunc(l.Evacuations, func(e control.EvacuationState) bool { return e.ID == r[server].ID })
		if i < 0 {
			return "", overError{fmt.Errorf("evacuation %s is over: somebody restored it, or it has expired", r[server].ID)}
		}
		for _, p := range l.Evacuations[i].Parts {
			switch {
			case p.State == "restoring":
				return "", overError{fmt.Errorf("evacuation %s is being put back: %s", r[server].ID, partText(p))}
			case p.State == "evacuated":
				executed = executed || p.Type == control.TypeExec
			case p.Type != control.TypeExec || !executed || p.State != "waiting": // for what another runs
				return partText(p), nil
			}
		}
		return "", nil
	})
}

// restored waits until the ledger has nothing of what the restoration puts back, at all of the servers.
func (w *waiter) restored(ctx context.Context, got receipts, r control.RestorationRequest) error {
	return waitFor(ctx, w, got, "/v1/evacuations", func(_ string, l admin.EvacuationList) (string, error) {
		for _, e := range l.Evacuations {
			of := r.Zone == "" || e.Zone == r.Zone
			for _, p := range e.Parts {
				of = of || p.State == "restoring" // the zone goes by another name, an alias
			}
			left := 0
			for _, t := range e.Ledger {
				if (of || t.Zone == r.Zone) && (r.Type == "" || t.Type == r.Type) {
					left++
				}
			}
			if left == 0 {
				continue
			}
			text := fmt.Sprintf("zone %s: %d of the ledger left", e.Zone, left)
			for _, p := range e.Parts {
				if r.Type == "" || p.Type == r.Type {
					text += "; " + partText(p)
				}
			}
			return text, nil
		}
		return "", nil
	})
}

// tellLatched names the services that stay with their backups after a restoration until somebody fails them back.
func (set *settings) tellLatched(cmd *cobra.Command, c *client, got receipts) error {
	servers := slices.Sorted(maps.Keys(got))
	var names []string
	results := c.all(cmd.Context(), servers, http.MethodGet, "/v1/status", nil)
	for i, st := range decode[admin.Status](results) {
		if results[i].err != nil {
			return fmt.Errorf("%s: it is restored, but which services stay with their backups is not known: %w", servers[i], results[i].err)
		}
		for _, svc := range st.Services {
			if svc.Failback == "manual" && svc.Pool == "backup" {
				names = append(names, svc.Name)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names[:min(len(names), maxRows)] {
		printf(cmd.ErrOrStderr(), "%s stays with its backups (failback: manual). When its primaries suffice: %s\n", name, set.commandLine("failback", name))
	}
	if n := len(names) - maxRows; n > 0 {
		printf(cmd.ErrOrStderr(), "and %d more services stay with their backups: see %s\n", n, set.commandLine("status"))
	}
	return nil
}

func partText(p control.PartState) string {
	if p.Why == "" {
		return p.Type + " " + p.State
	}
	return p.Type + " " + p.State + ": " + p.Why
}
