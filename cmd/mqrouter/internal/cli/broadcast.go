package cli

import "github.com/spf13/cobra"

func newBroadcast(e *env) *cobra.Command { return &cobra.Command{Use: "broadcast"} }
