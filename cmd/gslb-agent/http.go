package main

import (
	"fmt"
	"strings"

	"go.uber.org/zap"

	"gslbd/config"
	"gslbd/sitereport"
)

// readHTTP adds the readers that ask over HTTP.
func (p *parts) readHTTP(c *config.Agent) error {
	for i, n := range c.Nginx {
		h, err := p.httpOptions("nginx", i, n.AgentHTTP)
		if err != nil {
			return err
		}
		r, err := sitereport.NewNginxStatus(h)
		if err != nil {
			return fmt.Errorf("nginx[%d].url: %w", i, err)
		}
		p.readers = append(p.readers, namedReader{r, "nginx " + shown(n.URL)})
	}
	for i, n := range c.NginxPlus {
		h, err := p.httpOptions("nginx_plus", i, n.AgentHTTP)
		if err != nil {
			return err
		}
		opts := sitereport.NginxPlusOptions{HTTP: h}
		for _, v := range n.VirtualServers {
			opts.VirtualServers = append(opts.VirtualServers, sitereport.NginxPlusVirtualServer(v))
		}
		r, err := sitereport.NewNginxPlus(opts)
		if err != nil {
			return fmt.Errorf("nginx_plus[%d].url: %w", i, err)
		}
		p.readers = append(p.readers, namedReader{r, "nginx_plus " + shown(n.URL)})
		p.virtualServers += len(n.VirtualServers)
	}
	for i, e := range c.Envoy {
		h, err := p.httpOptions("envoy", i, e.AgentHTTP)
		if err != nil {
			return err
		}
		opts := sitereport.EnvoyOptions{HTTP: h}
		for _, v := range e.VirtualServers {
			opts.VirtualServers = append(opts.VirtualServers, sitereport.EnvoyVirtualServer(v))
		}
		r, err := sitereport.NewEnvoy(opts)
		if err != nil {
			return fmt.Errorf("envoy[%d].url: %w", i, err)
		}
		p.readers = append(p.readers, namedReader{r, "envoy " + shown(e.URL)})
		p.virtualServers += len(e.VirtualServers)
	}
	for i, c := range c.Prometheus {
		h, err := p.httpOptions("prometheus", i, c.AgentHTTP)
		if err != nil {
			return err
		}
		opts := sitereport.PrometheusOptions{HTTP: h, Load: sitereport.PrometheusLoad{
			Sessions: figure(c.Load.Sessions), NewSessions: figure(c.Load.NewSessions),
			BitsPerSecIn: figure(c.Load.BitsIn), BitsPerSecOut: figure(c.Load.BitsOut),
		}}
		for _, v := range c.VirtualServers {
			opts.VirtualServers = append(opts.VirtualServers, sitereport.PrometheusVirtualServer{
				Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol,
				Sessions: figure(v.Sessions), Servers: sitereport.PrometheusServers(*v.Servers),
			})
		}
		r, err := sitereport.NewPrometheus(opts)
		if err != nil {
			return fmt.Errorf("prometheus[%d]: %w", i, err)
		}
		p.readers = append(p.readers, namedReader{r, "prometheus " + shown(c.URL)})
		p.virtualServers += len(c.VirtualServers)
	}
	return nil
}

// figure is a figure of a Prometheus reader; nil: not known.
func figure(f *config.PrometheusFigure) *sitereport.PrometheusFigure {
	if f == nil {
		return nil
	}
	return &sitereport.PrometheusFigure{Series: f.Series, Counter: f.Kind == "counter", Factor: f.Factor}
}

// httpOptions are how the reader at index i of a list asks. Its files are read, so that the error names one that cannot be
// used.
func (p *parts) httpOptions(list string, i int, h config.AgentHTTP) (sitereport.HTTPOptions, error) {
	s := secret{key: "token_file", file: h.TokenFile}
	if h.User != "" {
		s = secret{key: "password_file", file: h.PasswordFile, user: h.User}
	}
	transport, err := newSecured(config.AgentTLS(h.TLS), s, p.log.With(zap.String("reader", list+" "+shown(h.URL))))
	if err != nil {
		return sitereport.HTTPOptions{}, fmt.Errorf("%s[%d].%w", list, i, err)
	}
	return sitereport.HTTPOptions{URL: h.URL, Timeout: h.Timeout, Transport: transport}, nil
}

// shown is a URL without its query, which may hold what others should not see.
func shown(url string) string {
	url, _, _ = strings.Cut(url, "?")
	return url
}
