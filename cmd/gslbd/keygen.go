package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"gslbd/dns"
)

// keygenCommand makes a key for a zone that is signed.
func keygenCommand() *cobra.Command {
	var o dns.KeyOptions
	var ksk, zsk bool
	cmd := &cobra.Command{
		Use:   "keygen --zone ZONE --directory DIRECTORY [--algorithm ALGORITHM] [--ksk|--zsk]",
		Short: "make a DNSSEC key for a zone: one that signs all (CSK), or one of a pair of KSK and ZSK",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			role := dns.CSK
			switch {
			case o.Zone == "" || o.Directory == "":
				return usageError{errors.New("gslbd: --zone and --directory are required")}
			case ksk && zsk:
				return usageError{errors.New("gslbd: --ksk and --zsk are two keys: run it twice, or without either for one key that does both")}
			case ksk:
				role = dns.KSK
			case zsk:
				role = dns.ZSK
			}
			base, ds, err := dns.GenerateKey(o, role, time.Now())
			if err != nil {
				return fmt.Errorf("gslbd: keygen: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s.key\n%s.private\n", base, base)
			if ds != "" {
				fmt.Fprintln(cmd.OutOrStdout(), ds)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&o.Zone, "zone", "", "the zone's name")
	cmd.Flags().StringVar(&o.Directory, "directory", "", "where to write the two files")
	cmd.Flags().StringVar(&o.Algorithm, "algorithm", "ecdsap256sha256", "ecdsap256sha256, ecdsap384sha384 or ed25519")
	cmd.Flags().BoolVar(&ksk, "ksk", false, "make a key that signs only the keys (flags 257)")
	cmd.Flags().BoolVar(&zsk, "zsk", false, "make a key that signs all but the keys (flags 256)")
	return cmd
}
