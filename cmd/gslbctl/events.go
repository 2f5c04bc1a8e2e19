package main

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gslbd/admin"
)

func eventsCommand(set *settings) *cobra.Command {
	var service, site, since string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "show what happened in the last 24 hours, in order: transitions, and orders",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			for _, a := range []struct{ name, value string }{{"service", service}, {"site", site}} {
				if _, err := path.Match(a.value, ""); err != nil {
					return usage(cmd, fmt.Errorf("--%s: %q is not a name or a pattern such as *.example.com", a.name, a.value))
				}
				if a.value != "" {
					query.Set(a.name, a.value)
				}
			}
			if since != "" {
				at, err := moment(since)
				if err != nil {
					return usage(cmd, fmt.Errorf("--since: %w", err))
				}
				query.Set("since", at)
			}
			target := "/v1/events"
			if len(query) > 0 {
				target += "?" + query.Encode()
			}
			return ask(cmd, set, http.MethodGet, target, showEvents)
		},
	}
	cmd.Flags().StringVar(&service, "service", "", "only of services that this name or pattern matches, and orders for them")
	cmd.Flags().StringVar(&site, "site", "", "only of sites that this name or pattern matches, of their members, and orders for them")
	cmd.Flags().StringVar(&since, "since", "", "how long ago to begin (8h), or when: 15:04 or \"2006-01-02 15:04\" here, 2006-01-02T15:04:05Z (default: 24h)")
	for name, names := range map[string]completer{"service": services, "site": sites} {
		_ = cmd.RegisterFlagCompletionFunc(name, complete(set, names)) // fails only for a flag that there is not
	}
	return cmd
}

// moment returns what --since says as the server takes it: a duration, or a time with its zone.
func moment(text string) (string, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return text, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.Format(time.RFC3339), nil
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04"} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return at.Format(time.RFC3339), nil
		}
	}
	if at, err := time.Parse("15:04", text); err == nil {
		now := time.Now()
		last := time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), 0, 0, time.Local)
		if last.After(now) {
			last = last.AddDate(0, 0, -1)
		}
		return last.Format(time.RFC3339), nil
	}
	return "", fmt.Errorf("%q is neither how long ago, such as 8h, nor a time such as 03:10 or \"2006-01-02 15:04\"", text)
}

func showEvents(server string, l admin.EventList) string {
	if len(l.Events) == 0 {
		return fmt.Sprintf("%s: nothing of that kind happened.\n", server)
	}
	var b strings.Builder
	zone, _ := l.Time.Local().Zone()
	fmt.Fprintf(&b, "%s: %s, times in %s\n", server, count(len(l.Events), "event"), zone)
	day := ""
	for _, e := range l.Events {
		at := e.Time.Local()
		if d := at.Format(time.DateOnly); d != day {
			day = d
			b.WriteString("  " + d + "\n")
		}
		mark := ""
		if e.Severity != admin.Information {
			mark = e.Severity
		}
		b.WriteString(wrapAt(tableWidth, fmt.Sprintf("  %s  %-8s  ", at.Format(time.TimeOnly), mark), eventText(&e)))
	}
	return b.String()
}

// eventText writes one event in a line.
func eventText(e *admin.Event) string {
	text := e.Message
	switch {
	case e.Target != "":
		text += ", " + e.Target
	case e.Member != "":
		text += ", " + e.Service + "/" + e.Member
	case e.Service != "":
		text += ", " + e.Service
	case e.Site != "":
		text += ", " + e.Site
	}
	for _, more := range []string{e.Family, e.Details} {
		if more != "" {
			text += ", " + more
		}
	}
	why := e.Why
	if e.Author != "" {
		why = strings.TrimSuffix("by "+e.Author+": "+why, ": ")
	}
	if why != "" {
		text += ": " + why
	}
	return text
}
