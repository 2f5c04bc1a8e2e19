package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"gslbd/admin"
)

// maxAnswer bounds what is read of an answer, in bytes: a status of ten thousand members has less.
const maxAnswer = 64 << 20

// A client asks admin interfaces.
type client struct {
	http    *http.Client
	token   string
	timeout time.Duration
}

func newClient(set *settings) (*client, error) {
	c := &client{timeout: set.timeout}
	if set.timeout <= 0 {
		return nil, usageError{fmt.Errorf("--timeout: %s is not above 0", set.timeout)}
	}
	if set.tokenFile != "" {
		token, err := readToken(set.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		c.token = token
	}
	c.http = &http.Client{
		// No proxy, which would see the token, and no redirects, which would carry it elsewhere.
		Transport:     &http.Transport{},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

func readToken(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s can be read by others: chmod 600 it", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, "\r\n") {
		return "", fmt.Errorf("%s does not hold one line with a token", path)
	}
	return token, nil
}

// do sends one request and returns the body of a good answer.
func (c *client) do(ctx context.Context, method, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader("{}")
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
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
	var refused admin.Error
	if json.Unmarshal(text, &refused) == nil && refused.Error != "" {
		if resp.StatusCode == http.StatusUnauthorized {
			return nil, fmt.Errorf("%s (gslbctl: --token-file)", refused.Error)
		}
		return nil, errors.New(refused.Error)
	}
	return nil, fmt.Errorf("%s, which is not an answer of gslbd: is this its admin.listen?", resp.Status)
}

// explain says what an operator can do about an error of the connection.
func (c *client) explain(err error) error {
	var dns *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("connection refused: is gslbd running, and is this its admin.listen?")
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s: is this its admin.listen, and can it be reached from here?", c.timeout)
	case errors.As(err, &dns):
		return fmt.Errorf("no such host: %s", dns.Name)
	}
	return err
}
