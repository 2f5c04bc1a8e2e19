package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// A Secret is the content of a secret file. It never prints itself; string(s) is the value.
type Secret string

const hidden = "(secret)"

// String returns "(secret)".
func (s Secret) String() string { return hidden }

// Format writes "(secret)" for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// MarshalText returns "(secret)", also for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

const (
	// mostSecret is how long a file of secrets may be in bytes.
	mostSecret = 4096
	// mostTokens is how many tokens may be in force: the present one, and its neighbours in a rollover.
	mostTokens = 3
)

// MostPEM is how long a file of a private key, a certificate chain or authorities may be in bytes: far above what any takes.
const MostPEM = 1 << 20

// ReadTokens reads a file of tokens, one a line: the first is the one to present, and all are accepted. At most 3 words of
// printable ASCII, and 4096 bytes. Only the file's owner may be able to read it. Errors name the file and show no token.
func ReadTokens(file string) ([]Secret, error) {
	data, err := ReadSecret(file, mostSecret)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) > mostTokens {
		return nil, fmt.Errorf("%s has more than %d lines: the token in force, and at most two others that are still accepted", file, mostTokens)
	}
	tokens := make([]Secret, len(lines))
	for i, line := range lines {
		word := strings.TrimSpace(line)
		if word == "" || strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("%s line %d is not a single word of printable ASCII", file, i+1)
		}
		tokens[i] = Secret(word)
	}
	return tokens, nil
}

// ReadSecret reads a file that only its owner may be able to read, with at most most bytes. Errors name the file.
func ReadSecret(file string, most int) ([]byte, error) { return readFile(file, most, 0o077) }

// ReadPEM reads a file of certificates, which anybody may read, with at most MostPEM bytes. Errors name the file.
func ReadPEM(file string) ([]byte, error) { return readFile(file, MostPEM, 0) }

// readFile reads a file that is not empty and has none of the permissions in refused, with at most most bytes.
func readFile(file string, most int, refused os.FileMode) ([]byte, error) {
	// Opening a pipe would wait for its writer.
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case !mode.IsRegular():
		return nil, fmt.Errorf("%s is not a file", file)
	case mode.Perm()&refused != 0:
		return nil, fmt.Errorf("%s can be read or written by others than its owner (mode %04o): run chmod 600 %s", file, mode.Perm(), file)
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	switch {
	case err != nil:
		return nil, err
	case strings.TrimSpace(string(data)) == "":
		return nil, errors.New(file + " is empty")
	case len(data) > most:
		return nil, fmt.Errorf("%s has more than %d bytes, and cannot be meant", file, most)
	}
	return data, nil
}
