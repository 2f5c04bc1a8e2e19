// Command demo makes certificates for trying reports and the admin interface over TLS: a server's for localhost, one for
// each site of a configuration, and an operator's, each kind with an authority of its own, so that no site can pass for an
// operator. They are valid for a year.
//
//	go run ./testdata/certs/demo config.example.yaml demo-certs
package main

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"

	"gslbd/config"
	"gslbd/testdata/certs"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: demo CONFIG DIRECTORY")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "demo-certs:", err)
		os.Exit(1)
	}
}

// run writes the certificates for the sites of the configuration at path into dir.
func run(path, dir string) error {
	c, _, err := config.Load(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var authorities []certs.Certificate
	for _, name := range []string{"ca", "sites-ca", "operators-ca"} {
		ca, err := certs.Authority("gslbd demo " + name)
		if err == nil {
			err = ca.Write(dir, name)
		}
		if err != nil {
			return err
		}
		authorities = append(authorities, ca)
	}
	write := func(name string, c certs.Certificate, err error) error {
		if err != nil {
			return err
		}
		return c.Write(dir, name)
	}
	server, err := authorities[0].Sign(x509.Certificate{
		Subject: pkix.Name{CommonName: "gslbd demo server"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	errs := []error{write("server", server, err)}
	for _, s := range c.Sites {
		site, err := authorities[1].Client(s.Name, s.Name)
		errs = append(errs, write("site-"+s.Name, site, err))
	}
	operator, err := authorities[2].Client("operator")
	return errors.Join(append(errs, write("operator", operator, err))...)
}
