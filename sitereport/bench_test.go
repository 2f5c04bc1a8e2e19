package sitereport

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// BenchmarkDecode measures reading a report: of a small site, of one with many servers, and with many round trips.
func BenchmarkDecode(b *testing.B) {
	for _, c := range []struct {
		name          string
		servers, rtts int
	}{{"small", 4, 0}, {"1000-servers", 1000, 0}, {"2000-rtts", 4, 2000}} {
		var servers, rtts []string
		for i := range c.servers {
			servers = append(servers, fmt.Sprintf(`{"name":"server%d","address":"10.1.%d.%d:443","state":"up"}`, i, i>>8, i&0xff))
		}
		for i := range c.rtts {
			rtts = append(rtts, fmt.Sprintf(`{"resolver":"20.0.%d.%d","rtt_ms":30.4,"method":"icmp","age_ms":1500}`, i>>8, i&0xff))
		}
		body := []byte(`{"site":"seoul","agent":"lb1","boot_id":"b","sequence":42,"load":{"sessions":400000,"new_sessions_per_second":1200,` +
			`"bits_per_second_in":100000000,"bits_per_second_out":500000000},"virtual_servers":[{"name":"web","address":"1.1.1.1","port":443,"protocol":"tcp",` +
			`"sessions":400000,"servers":[` + strings.Join(servers, ",") + `]}],"rtts":[` + strings.Join(rtts, ",") + `]}`)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, err := Decode(bytes.NewReader(body), MaxReport); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
