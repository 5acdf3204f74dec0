package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// Consul says how a broker reaches the Consul of a city whose coordinator that is. What
// is empty is what the variable of Consul's own tools says that is named with it.
type Consul struct {
	// Address is that of the agent, http(s)://HOST:PORT, HOST:PORT or unix:///PATH;
	// empty: CONSUL_HTTP_ADDR, else 127.0.0.1:8500.
	Address string `mapstructure:"consul"`
	// Datacenter is the one whose KV store is asked; empty: the agent's own.
	Datacenter string `mapstructure:"consul-datacenter"`
	// TokenFile is the path of a file with the token of Consul's ACL, which is read again
	// when it changes; empty: CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_TOKEN, else none.
	TokenFile string `mapstructure:"consul-token-file"`
	// CAFile has the authorities of the agent's certificate, CertFile and KeyFile this
	// node's own, as PEM; empty: CONSUL_CACERT, CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY.
	CAFile   string `mapstructure:"consul-ca-file"`
	CertFile string `mapstructure:"consul-cert-file"`
	KeyFile  string `mapstructure:"consul-key-file"`
	// ServerName is the name in the agent's certificate; empty: CONSUL_TLS_SERVER_NAME,
	// else the host of the address.
	ServerName string `mapstructure:"consul-server-name"`
}

func consulFlags(fs *pflag.FlagSet) {
	fs.String("consul", "", "Consul agent of a city whose coordinator is Consul, http(s)://HOST:PORT or unix:///PATH; empty: CONSUL_HTTP_ADDR, else 127.0.0.1:8500")
	fs.String("consul-datacenter", "", "Consul datacenter whose KV store is asked; empty: the agent's")
	fs.String("consul-token-file", "", "file with the token of Consul's ACL that may read and write below the city's prefix, read again when it changes; empty: CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_TOKEN")
	fs.String("consul-ca-file", "", "authorities of the Consul agent's certificate; empty: CONSUL_CACERT, else the system's")
	fs.String("consul-cert-file", "", "certificate to show to the Consul agent; empty: CONSUL_CLIENT_CERT, else none")
	fs.String("consul-key-file", "", "its key; empty: CONSUL_CLIENT_KEY")
	fs.String("consul-server-name", "", "name in the Consul agent's certificate, such as server.dc1.consul; empty: CONSUL_TLS_SERVER_NAME, else the host of the address")
}

func (c Consul) validate() error {
	var errs []error
	if scheme, _, ok := strings.Cut(c.Address, "://"); ok && scheme != "http" && scheme != "https" && scheme != "unix" {
		errs = append(errs, fmt.Errorf("config: consul %q: write http://HOST:PORT, https://HOST:PORT or unix:///PATH", c.Address))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("config: consul-cert-file and consul-key-file: give both or none"))
	}
	return errors.Join(errs...)
}
