package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gslbd/admin"
)

// maxAnswer bounds what is read of an answer, in bytes: a status of ten thousand members has less.
const maxAnswer = 64 << 20

// A client asks admin interfaces.
type client struct {
	http    *http.Client
	token   string
	timeout time.Duration // of one request
}

// A refusal is a server's answer that it does not do what it was asked.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// refusedWith reports whether err is a server's answer with one of the statuses.
func refusedWith(err error, statuses ...int) bool {
	var r *refusal
	return errors.As(err, &r) && slices.Contains(statuses, r.status)
}

// An unsureError is a failure after the request was sent: the server may have done what it asks.
type unsureError struct{ error }

func (e unsureError) Unwrap() error { return e.error }

func newClient(set *settings) (*client, error) {
	c := &client{timeout: set.timeout}
	if set.waiting {
		c.timeout = min(c.timeout, requestTimeout)
	}
	if set.timeout <= 0 {
		return nil, usageError{fmt.Errorf("--timeout: %s is not above 0", set.timeout)}
	}
	if from, path := fileOf("--token-file", set.tokenFile); path != "" {
		token, err := readToken(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		c.token = token
	}
	tlsConfig, err := set.tls()
	if err != nil {
		return nil, err
	}
	c.http = &http.Client{
		// No proxy, which would see the token, and no redirects, which would carry it elsewhere.
		Transport:     &http.Transport{TLSClientConfig: tlsConfig},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// fileOf returns the file that a flag names, else the environment (--token-file: GSLBCTL_TOKEN_FILE), and which of them.
func fileOf(flag, value string) (from, path string) {
	if value != "" {
		return flag, value
	}
	from = "GSLBCTL_" + strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(flag, "--"), "-", "_"))
	return from, os.Getenv(from)
}

// tls returns what https servers are asked with; nil: nothing special.
func (set *settings) tls() (*tls.Config, error) {
	fromCA, ca := fileOf("--ca", set.ca)
	fromCertificate, certificate := fileOf("--certificate", set.certificate)
	fromKey, key := fileOf("--key", set.key)
	if ca == "" && certificate == "" && key == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", fromCA, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: %s holds no certificate in PEM form", fromCA, ca)
		}
	}
	if (certificate == "") != (key == "") {
		return nil, usageError{errors.New("--certificate and --key (GSLBCTL_CERTIFICATE and GSLBCTL_KEY) go together")}
	}
	if certificate != "" {
		if err := private(key); err != nil {
			return nil, fmt.Errorf("%s: %w", fromKey, err)
		}
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", fromCertificate, fromKey, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// private returns an error if others can read a file that holds a secret.
func private(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s can be read by others: chmod 600 it", path)
	}
	return nil
}

func readToken(path string) (string, error) {
	if err := private(path); err != nil {
		return "", err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	// Of several lines, as gslbd has them during a rollover, the first is the one to present.
	token, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	if token = strings.TrimSpace(token); token == "" {
		return "", fmt.Errorf("%s holds no token", path)
	}
	return token, nil
}

// do sends one request, with body as JSON unless it is nil, and returns the body of a good answer.
func (c *client) do(ctx context.Context, method, url string, body any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	text, err := c.exchange(ctx, method, url, body)
	if err != nil && sent.Load() && !errors.As(err, new(*refusal)) {
		err = unsureError{err}
	}
	return text, err
}

func (c *client) exchange(ctx context.Context, method, url string, body any) ([]byte, error) {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, c.explain(err)
	}
	if len(text) > maxAnswer {
		return nil, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	if resp.StatusCode == http.StatusOK && json.Valid(text) {
		return text, nil
	}
	r := &refusal{status: resp.StatusCode}
	var refused admin.Error
	switch err := json.Unmarshal(text, &refused); {
	case err != nil || refused.Error == "":
		r.status = 0
		r.text = resp.Status + ", which is not an answer of gslbd: is this its admin.listen?"
		if strings.Contains(string(text), "HTTPS server") {
			r.text = "it speaks TLS: give its address as https://"
		}
	case resp.StatusCode == http.StatusUnauthorized:
		r.text = refused.Error + " (gslbctl: --token-file)"
	default:
		r.text = refused.Error
	}
	return nil, r
}

// explain says what an operator can do about an error of the connection.
func (c *client) explain(err error) error {
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("connection refused: is gslbd running, and is this its admin.listen?")
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s: is this its admin.listen, and can it be reached from here?", c.timeout)
	case errors.As(err, &dns):
		return fmt.Errorf("no such host: %s", dns.Name)
	case errors.As(err, &unknown):
		return errors.New("its certificate is not of an authority that is known here: give the authority's certificate with --ca")
	case errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("it does not speak TLS: give its address as http://")
	}
	return err
}

// A result is one server's answer.
type result struct {
	server string
	body   []byte
	err    error
}

// all sends one request to every server at once, since a server that is away must not keep an order from the others. It
// returns the results in the order of the servers.
func (c *client) all(ctx context.Context, servers []string, method, path string, body any) []result {
	results := make([]result, len(servers))
	var wg sync.WaitGroup
	for i, server := range servers {
		wg.Go(func() {
			text, err := c.do(ctx, method, server+path, body)
			results[i] = result{server, text, err}
		})
	}
	wg.Wait()
	return results
}

// decode reads the answers, each as a T. The error of one that cannot be read stands in its result.
func decode[T any](results []result) []T {
	values := make([]T, len(results))
	for i := range results {
		r := &results[i]
		if r.err != nil {
			continue
		}
		if err := json.Unmarshal(r.body, &values[i]); err != nil {
			r.err = fmt.Errorf("the answer is not that of this version of gslbd: %w", err)
		}
	}
	return values
}

// present prints every answer in turn: as JSON, or as show renders it for people. It returns errFailed if one is an error.
func present[T any](cmd *cobra.Command, set *settings, results []result, show func(server string, v T) string) error {
	values := decode[T](results)
	failed, shown := false, false
	for i, r := range results {
		if r.err != nil {
			failed = true
			printf(cmd.ErrOrStderr(), "gslbctl: %s: %v\n", r.server, r.err)
		}
		switch {
		case set.json:
			if err := writeJSON(cmd.OutOrStdout(), r); err != nil {
				return err
			}
		case r.err == nil:
			text := show(r.server, values[i])
			if shown && strings.Count(text, "\n") > 1 {
				printf(cmd.OutOrStdout(), "\n")
			}
			printf(cmd.OutOrStdout(), "%s", text)
			shown = true
		}
	}
	if failed {
		return errFailed
	}
	return nil
}

// writeJSON writes one result as an object: "server", and beside it the fields of the answer, or "error".
func writeJSON(w io.Writer, r result) error {
	object := map[string]any{}
	if r.err != nil {
		object["error"] = r.err.Error()
	} else {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(r.body, &fields); err != nil {
			return err
		}
		for name, value := range fields {
			object[name] = value
		}
	}
	object["server"] = r.server
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(object)
}
