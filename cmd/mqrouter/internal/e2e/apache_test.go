package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// apacheServer is a running Apache RocketMQ.
type apacheServer struct {
	endpoint string // of the proxy, for clients
	ca       string // certificate authority of its port, PEM
}

// startApache runs Apache RocketMQ itself, a name server and a broker inside its
// proxy, with the topics and consumer groups of the scenarios. Its classes are
// what deploy/test/apache.sh has fetched; its data ends with the test.
func startApache(t *testing.T) *apacheServer {
	t.Helper()
	home := builtFrom(t, "", "apache", "..", "apache", "pom.xml")
	if lacksFile(filepath.Join(home, "lib"), "lib") != "" {
		t.Fatalf("Apache RocketMQ is not in %s: `make apache` fetches it", home)
	}
	dir := t.TempDir()
	ports := freePorts(t, 6)
	port := func(i int) string { return fmt.Sprint(ports[i]) }
	pki := filepath.Join(dir, "pki")
	write := func(content string, path ...string) string {
		file := filepath.Join(append([]string{dir}, path...)...)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	must(t, nil, "pki", "init", "--deployment", "sample", "--dir", pki)
	must(t, nil, "pki", "issue", "--dir", pki, "--topology", write(string(sample.YAML), "sample.yaml"), "--name", "rz01-a-1", "--ip", "127.0.0.1")

	names := "127.0.0.1:" + port(0)
	nameConfig := write("listenPort="+port(0)+"\nkvConfigPath="+filepath.Join(dir, "kv.json")+"\n", "conf", "namesrv.conf")
	brokerConfig := write(`brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerIP1=127.0.0.1
listenPort=`+port(1)+`
haListenPort=`+port(3)+`
namesrvAddr=`+names+`
storePathRootDir=`+filepath.Join(dir, "store")+`
mappedFileSizeCommitLog=67108864
mappedFileSizeTimerLog=16777216
diskMaxUsedSpaceRatio=98
autoCreateTopicEnable=false
enablePropertyFilter=true
recallMessageEnable=true
transactionTimeOut=1000
transactionCheckInterval=1000
transactionCheckMax=5
`, "conf", "broker.conf")
	proxyConfig := write(asJSON(t, map[string]any{
		"rocketMQClusterName": "DefaultCluster", "namesrvAddr": names, "proxyMode": "local", "localServeAddr": "127.0.0.1",
		"grpcServerPort": ports[4], "remotingListenPort": ports[5], "tlsTestModeEnable": false,
		"tlsKeyPath":  filepath.Join(pki, "rz01-a-1-key.pem"),
		"tlsCertPath": filepath.Join(pki, "rz01-a-1.pem"),
	}), "conf", "rmq-proxy.json")
	write(apacheTopics(t), "store", "config", "topics.json")
	write(apacheGroups(t), "store", "config", "subscriptionGroup.json")

	java := func(name string, heap string, class string, args ...string) *process {
		flags := []string{"-Xmx" + heap, "-XX:MaxDirectMemorySize=" + heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
			"-Duser.home=" + dir, "-Drocketmq.home.dir=" + dir, "-cp", filepath.Join(home, "lib", "*"), class}
		return start(t, name, []string{"ROCKETMQ_HOME=" + dir}, "java", append(flags, args...)...)
	}
	java("name server", "128m", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", nameConfig).await(t, "boot success", time.Minute)
	java("proxy", "512m", "org.apache.rocketmq.proxy.ProxyStartup", "-pm", "local", "-n", names, "-bc", brokerConfig, "-pc", proxyConfig).
		await(t, "startup successfully", 2*time.Minute)
	server := &apacheServer{endpoint: "127.0.0.1:" + port(4), ca: filepath.Join(pki, "ca.pem")}
	// The proxy serves before the broker has told the name server its topics, and
	// remembers for a while of each topic that it was asked for that it is not there.
	eventually(t, "the proxy knows the topics", 2*time.Minute, func() error {
		p, err := rocketmqclient.NewProducer(t.Context(), rocketmqclient.Config{Endpoint: server.endpoint}, "small")
		if err != nil {
			return err
		}
		return p.Close()
	})
	return server
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
	for _, g := range conformanceGroups() {
		table[g.name] = map[string]any{
			"groupName": g.name, "consumeEnable": true, "consumeFromMinEnable": true, "consumeBroadcastEnable": true,
			"consumeMessageOrderly": g.fifo, "retryQueueNums": 1, "retryMaxTimes": g.attempts - 1, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1,
			"groupRetryPolicy": map[string]any{"type": "CUSTOMIZED", "customizedRetryPolicy": map[string]any{"next": []int{1000}}},
		}
	}
	return asJSON(t, map[string]any{"dataVersion": apacheVersion, "subscriptionGroupTable": table})
}

var apacheVersion = map[string]any{"counter": 1, "stateVersion": 0, "timestamp": 1}
