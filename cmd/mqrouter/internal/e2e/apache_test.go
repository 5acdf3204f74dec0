package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// apacheServer is a running Apache RocketMQ.
type apacheServer struct {
	endpoint string // of the proxy, for clients
	ca       string // certificate authority of its port, PEM

	t             *testing.T
	home, dir     string
	names         string // address of the name server
	ports         []int  // free ones
	setup         apacheSetup
	broker, proxy *process // broker is nil unless it is apart
}

// apacheSetup says how Apache RocketMQ is run.
type apacheSetup struct {
	apart   bool // broker and proxy are processes of their own, else one
	guarded bool // clients need users and permissions (ACL 2.0)
}

// Of the user who may do everything, and who is Apache's own client.
const (
	apacheUser   = "operator"
	apacheSecret = "the-secret-of-the-operator"
)

// startApache runs Apache RocketMQ itself, a name server, a broker and a proxy,
// with the topics and consumer groups of the scenarios. Its classes are what
// deploy/test/apache.sh has fetched; its data ends with the test.
func startApache(t *testing.T, setup apacheSetup) *apacheServer {
	t.Helper()
	home := builtFrom(t, "", "apache", "..", "apache", "pom.xml")
	if lacksFile(filepath.Join(home, "lib"), "lib") != "" {
		t.Fatalf("Apache RocketMQ is not in %s: `make apache` fetches it", home)
	}
	a := &apacheServer{t: t, home: home, dir: t.TempDir(), ports: freePorts(t, 6), setup: setup}
	a.names, a.endpoint = "127.0.0.1:"+a.port(0), "127.0.0.1:"+a.port(4)
	a.configure()
	a.java("name server", "128m", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", a.path("conf", "namesrv.conf")).await(t, "boot success", time.Minute)
	a.startBroker()
	a.startProxy()
	return a
}

func (a *apacheServer) port(i int) string { return fmt.Sprint(a.ports[i]) }

func (a *apacheServer) path(name ...string) string {
	return filepath.Join(append([]string{a.dir}, name...)...)
}

func (a *apacheServer) write(content string, name ...string) {
	a.t.Helper()
	if err := os.MkdirAll(filepath.Dir(a.path(name...)), 0o755); err != nil {
		a.t.Fatal(err)
	}
	if err := os.WriteFile(a.path(name...), []byte(content), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// configure writes certificates, the configurations, and the tables that the broker
// begins with.
func (a *apacheServer) configure() {
	t := a.t
	pki := a.path("pki")
	a.ca = filepath.Join(pki, "ca.pem")
	a.write(string(sample.YAML), "sample.yaml")
	must(t, nil, "pki", "init", "--deployment", "sample", "--dir", pki)
	must(t, nil, "pki", "issue", "--dir", pki, "--topology", a.path("sample.yaml"), "--name", "rz01-a-1", "--ip", "127.0.0.1")

	a.write("listenPort="+a.port(0)+"\nkvConfigPath="+a.path("kv.json")+"\n", "conf", "namesrv.conf")
	mode := "local"
	if a.setup.apart {
		mode = "cluster"
	}
	proxy := map[string]any{
		"rocketMQClusterName": "DefaultCluster", "namesrvAddr": a.names, "proxyMode": mode, "localServeAddr": "127.0.0.1",
		"grpcServerPort": a.ports[4], "remotingListenPort": a.ports[5], "tlsTestModeEnable": false,
		"tlsKeyPath":  filepath.Join(pki, "rz01-a-1-key.pem"),
		"tlsCertPath": filepath.Join(pki, "rz01-a-1.pem"),
	}
	var guard string
	if a.setup.guarded {
		inner := asJSON(t, map[string]string{"accessKey": apacheUser, "secretKey": apacheSecret})
		for key, value := range map[string]any{
			"authenticationEnabled": true, "authorizationEnabled": true,
			"authenticationProvider":               "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
			"authorizationProvider":                "org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider",
			"innerClientAuthenticationCredentials": strings.Join(strings.Fields(inner), ""),
		} {
			proxy[key] = value
			guard += fmt.Sprintf("%s=%v\n", key, value)
		}
		proxy["authenticationMetadataProvider"] = "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider"
		proxy["authorizationMetadataProvider"] = "org.apache.rocketmq.proxy.auth.ProxyAuthorizationMetadataProvider"
		guard += "authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider\n" +
			"authorizationMetadataProvider=org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider\n" +
			fmt.Sprintf(`initAuthenticationUser={"username":"%s","password":"%s"}`, apacheUser, apacheSecret) + "\n"
		a.write("accessKey: "+apacheUser+"\nsecretKey: "+apacheSecret+"\n", "conf", "tools.yml")
	}
	a.write(asJSON(t, proxy), "conf", "rmq-proxy.json")
	a.write(`brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerIP1=127.0.0.1
listenPort=`+a.port(1)+`
haListenPort=`+a.port(3)+`
namesrvAddr=`+a.names+`
storePathRootDir=`+a.path("store")+`
mappedFileSizeCommitLog=67108864
mappedFileSizeTimerLog=16777216
diskMaxUsedSpaceRatio=98
autoCreateTopicEnable=false
enablePropertyFilter=true
recallMessageEnable=true
enableLmq=true
enableMultiDispatch=true
transactionTimeOut=1000
transactionCheckInterval=1000
transactionCheckMax=5
`+guard, "conf", "broker.conf")
	a.write(apacheTopics(t), "store", "config", "topics.json")
	a.write(apacheGroups(t), "store", "config", "subscriptionGroup.json")
}

// java starts a JVM with Apache's classes.
func (a *apacheServer) java(name, heap, class string, args ...string) *process {
	flags := []string{"-Xmx" + heap, "-XX:MaxDirectMemorySize=" + heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Duser.home=" + a.dir, "-Drocketmq.home.dir=" + a.dir, "-cp", filepath.Join(a.home, "lib", "*"), class}
	return start(a.t, name, []string{"ROCKETMQ_HOME=" + a.dir}, "java", append(flags, args...)...)
}

// startBroker starts the broker, or starts it again, when it is apart.
func (a *apacheServer) startBroker() {
	if !a.setup.apart {
		return
	}
	a.broker = a.java("broker", "512m", "org.apache.rocketmq.broker.BrokerStartup", "-n", a.names, "-c", a.path("conf", "broker.conf"))
	a.broker.await(a.t, "boot success", 2*time.Minute)
}

// startProxy starts the proxy, or starts it again, and waits until it serves.
func (a *apacheServer) startProxy() {
	a.t.Helper()
	args := []string{"-pm", "cluster", "-n", a.names, "-pc", a.path("conf", "rmq-proxy.json")}
	if !a.setup.apart {
		args = append(args, "-bc", a.path("conf", "broker.conf"))
		args[1] = "local"
	}
	a.proxy = a.java("proxy", "512m", "org.apache.rocketmq.proxy.ProxyStartup", args...)
	a.proxy.await(a.t, "startup successfully", 2*time.Minute)
	a.serves()
}

// serves waits until clients can use the topics: the proxy serves before the
// broker has told the name server of them, and remembers for a while of each topic
// that it was asked for that it is not there.
func (a *apacheServer) serves() {
	a.t.Helper()
	var names []string
	for _, c := range conformanceTopics {
		names = append(names, c.name)
	}
	cfg := rocketmqclient.Config{Endpoint: a.endpoint}
	if a.setup.guarded {
		cfg.AccessKey, cfg.SecretKey = apacheUser, apacheSecret
	}
	eventually(a.t, "the proxy knows the topics", 2*time.Minute, func() error {
		p, err := rocketmqclient.NewProducer(a.t.Context(), cfg, names...)
		if err != nil {
			return err
		}
		return p.Close()
	})
	eventually(a.t, "the proxy answers a receive", 2*time.Minute, func() error {
		c, err := rocketmqclient.NewSimpleConsumer(a.t.Context(), cfg, pairGroup(languages[0], "push"), 5*time.Second, rocketmqclient.Subscription{Topic: "small"})
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Receive(a.t.Context(), 1, 30*time.Second)
		return err
	})
}

// admin runs a command of Apache's mqadmin.
func (a *apacheServer) admin(args ...string) {
	a.t.Helper()
	p := a.java("mqadmin "+args[0], "64m", "org.apache.rocketmq.tools.command.MQAdminStartup", append(args, "-n", a.names, "-c", "DefaultCluster")...)
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		a.t.Fatalf("mqadmin %s does not end", args[0])
	}
	if p.err != nil || !strings.Contains(p.output(), "success") {
		a.t.Fatalf("mqadmin %v: %v\n%s", args, p.err, p.output())
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// apacheTopics is the broker's table of topics, as it keeps it.
func apacheTopics(t *testing.T) string {
	t.Helper()
	kinds := map[string]string{"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "transaction": "TRANSACTION", "priority": "PRIORITY", "lite": "LITE"}
	table := map[string]any{}
	for _, c := range conformanceTopics {
		table[c.name] = map[string]any{
			"topicName": c.name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "order": false,
			"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "attributes": map[string]string{"message.type": kinds[c.kind]},
		}
	}
	return asJSON(t, map[string]any{"dataVersion": apacheVersion, "topicConfigTable": table})
}

// apacheGroups is the broker's table of consumer groups, as it keeps it.
func apacheGroups(t *testing.T) string {
	t.Helper()
	table := map[string]any{}
	groups := conformanceGroups()
	for _, l := range languages {
		for kind, fifo := range map[string]bool{"kinds": true, "push": false, "simple": false} {
			groups = append(groups, conformanceGroup{name: pairGroup(l, kind), attempts: 16, fifo: fifo})
		}
	}
	for _, g := range groups {
		table[g.name] = map[string]any{
			"groupName": g.name, "consumeEnable": true, "consumeFromMinEnable": true, "consumeBroadcastEnable": true,
			"consumeMessageOrderly": g.fifo, "retryQueueNums": 1, "retryMaxTimes": g.attempts - 1, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1,
			"attributes":       apacheAttributes(g.name, g.lite),
			"groupRetryPolicy": map[string]any{"type": "CUSTOMIZED", "customizedRetryPolicy": map[string]any{"next": []int{1000}}},
		}
	}
	return asJSON(t, map[string]any{"dataVersion": apacheVersion, "subscriptionGroupTable": table})
}

// apacheAttributes bind a group of a lite scenario to its topic.
func apacheAttributes(group, lite string) map[string]string {
	if !strings.Contains(group, "-lite") || lite == "all" {
		return map[string]string{} // the proxy fails without
	}
	topic, model := liteTopic, "Shared"
	if strings.Contains(group, "-lite-limits-") {
		topic = tightTopic + group[:strings.Index(group, "-")]
	}
	if lite == "exclusive" {
		model = "Exclusive"
	}
	return map[string]string{"lite.bind.topic": topic, "lite.sub.model": model}
}

var apacheVersion = map[string]any{"counter": 1, "stateVersion": 0, "timestamp": 1}
