package main

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gslbd/admin"
)

// completeTimeout is how long a shell waits for names: nobody who presses a key waits longer.
const completeTimeout = 500 * time.Millisecond

// A completer lists what a word may be, from a server's status. A tab in one separates what explains it.
type completer func(st *admin.Status) []string

type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// complete completes with what the first server lists, and with nothing when it is away.
func complete(set *settings, names completer) completion {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		var found []string
		for _, n := range set.fetch(cmd.Context(), names) {
			name, _, _ := strings.Cut(n, "\t")
			if strings.HasPrefix(name, word) && !slices.Contains(args, name) {
				found = append(found, n)
			}
		}
		slices.Sort(found)
		return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeOne completes the only argument.
func completeOne(set *settings, names completer) completion {
	inner := complete(set, names)
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return inner(cmd, args, word)
	}
}

func (set *settings) fetch(ctx context.Context, names completer) []string {
	if ctx == nil {
		ctx = context.Background()
	}
	set.timeout = min(set.timeout, completeTimeout)
	servers, c, err := set.connect()
	if err != nil {
		return nil
	}
	defer c.http.CloseIdleConnections()
	body, err := c.do(ctx, http.MethodGet, servers[0]+"/v1/status", nil)
	var st admin.Status
	if err != nil || json.Unmarshal(body, &st) != nil {
		return nil
	}
	return names(&st)
}

func services(st *admin.Status) []string {
	var names []string
	for _, svc := range st.Services {
		names = append(append(names, svc.Name), svc.Aliases...)
	}
	return names
}

func members(st *admin.Status) []string {
	var names []string
	for _, svc := range st.Services {
		for _, m := range svc.Members {
			names = append(names, m.Name, svc.Name+"/"+m.Name)
		}
	}
	return names
}

func sites(st *admin.Status) []string {
	var names []string
	for _, s := range st.Sites {
		names = append(names, s.Name)
	}
	return names
}

func zones(st *admin.Status) []string {
	var names []string
	for _, s := range st.Sites {
		if s.Zone != "" {
			names = append(names, s.Zone)
		}
	}
	return names
}

// taken lists the zones of which an evacuation has something.
func taken(st *admin.Status) []string {
	var names []string
	for _, e := range st.Evacuations {
		names = append(names, e.Zone)
	}
	return names
}

func orderIDs(st *admin.Status) []string {
	var names []string
	for _, o := range st.Orders {
		names = append(names, o.ID+"\t"+o.Action+" "+targetText(o.Target)+": "+strings.Join(strings.Fields(o.Reason), " "))
	}
	return names
}
