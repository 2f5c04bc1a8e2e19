//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	reportPort = 8054
	adminPort  = 8053

	// mostRTTs is how many round trips go into one report: about 3 of the 4 MiB that a receiver reads.
	mostRTTs = 40_000
)

// feed reports for all sites of a large world: their load, and the round trips to all client networks. Each network is
// measured by the sites of one set. The first reports bring those for which the site stands first, since a site may only
// bring a share of the networks that never asked.
func feed(w *world) error {
	if !w.large() {
		return nil
	}
	owned, rest := make([][]string, w.sites), make([][]string, w.sites)
	for i := range w.networks {
		owner := i / manySets % w.members
		for j := range w.members {
			site := w.site(i, j)
			rtt := fmt.Sprintf(`{"prefix":"%s","rtt_ms":%d,"method":"tcp","age_ms":0}`, network(i), roundTrip(i, j))
			if j == owner {
				owned[site] = append(owned[site], rtt)
			} else {
				rest[site] = append(rest[site], rtt)
			}
		}
	}
	for _, lists := range [][][]string{owned, rest} {
		for more, sequence := true, 0; more; sequence++ {
			more = false
			for site := range lists {
				n := min(len(lists[site]), mostRTTs)
				if err := report(site, lists[site][:n]); err != nil {
					return err
				}
				lists[site] = lists[site][n:]
				more = more || len(lists[site]) > 0
			}
		}
	}
	return nil
}

func report(site int, rtts []string) error {
	var body bytes.Buffer
	fmt.Fprintf(&body, `{"site":"s%d","load":{"sessions":%d,"new_sessions_per_second":%d,"bits_per_second_in":100000000,"bits_per_second_out":%d},"rtts":[`, site, 400000+site*1000, 1000+site%3, 400000000+site*1000000)
	for i, rtt := range rtts {
		if i > 0 {
			body.WriteByte(',')
		}
		body.WriteString(rtt)
	}
	body.WriteString("]}")
	for {
		resp, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/v1/sites/s%d/report", reportPort, site), "application/json", bytes.NewReader(body.Bytes()))
		if err != nil {
			return err
		}
		answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		resp.Body.Close()
		switch {
		case err != nil:
			return err
		case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable:
			time.Sleep(100 * time.Millisecond)
		case resp.StatusCode != http.StatusOK:
			return fmt.Errorf("report of s%d: %s: %s", site, resp.Status, answer)
		default:
			return nil
		}
	}
}
