package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"gslbd/admin"
)

// dnssecCommand holds what concerns signed zones.
func dnssecCommand(set *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dnssec",
		Short: "look at signed zones",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usage(cmd, errors.New("which command?"))
		},
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "status",
		Short: "show the keys of the signed zones, and the DS records for their parents",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, set, http.MethodGet, "/v1/dnssec", showDNSSEC)
		},
	})
	return cmd
}

// showDNSSEC renders signed zones: their keys, and the DS records as a parent's zone file takes them.
func showDNSSEC(server string, v admin.DNSSEC) string {
	var b strings.Builder
	if len(v.Zones) == 0 {
		return server + ": no zone is signed.\n"
	}
	for i, z := range v.Zones {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s at %s\n", z.Name, server)
		if z.Problem != "" {
			b.WriteString(wrap("  warning: ", z.Problem))
		}
		rows := [][]string{{"KEY", "ROLE", "ALGORITHM", "STATE", "CDS", "NEXT CHANGE", "FILE"}}
		for _, k := range z.Keys {
			next, cds := "-", "-"
			if k.Next != nil {
				next = "in " + span(k.Next.Sub(v.Time))
			}
			if k.Synced {
				cds = "yes"
			}
			rows = append(rows, []string{fmt.Sprint(k.Tag), k.Role, k.Algorithm, k.State, cds, next, k.File})
		}
		table(&b, rows)
		for _, k := range z.Keys {
			if k.DS != "" && k.State != "removed" {
				fmt.Fprintf(&b, "%s\n", k.DS)
			}
		}
	}
	return b.String()
}
