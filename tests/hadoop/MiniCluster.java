import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.datanode.DataNodeFaultInjector;
import org.apache.hadoop.metrics2.AbstractMetric;
import org.apache.hadoop.metrics2.impl.MetricsCollectorImpl;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.minikdc.MiniKdc;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;

/**
 * A real Hadoop in one process, on loopback and free ports: HDFS, and on request YARN, a second
 * namenode, Kerberos.
 *
 * <p>Usage: java -cp JARS MiniCluster.java BASE_FOLDER CONF_FOLDER NUM_DATANODES [KEY=VALUE...]
 *
 * <p>Keys are Hadoop's own, and: mini.namenodes (1 or 2), mini.nodemanagers (0 is no YARN),
 * mini.kerberos (users that the KDC knows, by comma; BASE_FOLDER/NAME.keytab is made for each).
 *
 * <p>Prints "READY hdfs://..." once clients can connect with the configuration in CONF_FOLDER, and ends
 * when its standard input does: a parent that dies, however it dies, closes it. A line on standard input
 * is a command, answered by "DONE command": "failover" stops the active namenode, and the other takes
 * over; "stop-datanode N" stops the datanode N; "restart-datanode N" stops it and starts it again, as the
 * last one; "applications" lists YARN's, a line each: id, name, queue, state, final status; "calls" lists
 * how often each call of the namenode was answered, and how long that took.
 */
public class MiniCluster {
  private static final int START_TIMEOUT_MS = 60_000;
  private static final long LAST_ACKNOWLEDGEMENT_DELAY_MS = 10;
  private static final String NAME_SERVICE = "graphmill";

  private static MiniDFSCluster hdfs;
  private static MiniYARNCluster yarn;
  private static int activeNameNode = 0;

  public static void main(String[] args) throws InterruptedException {
    obeyStandardInput();
    try {
      start(args);
    } catch (Exception | LinkageError error) {
      error.printStackTrace();
      Runtime.getRuntime().halt(1); // what has started would keep the process alive
    }
    Thread.currentThread().join();
  }

  private static void start(String[] args) throws Exception {
    reportBlocksBeforeClientsAsk();
    Configuration settings = new Configuration(false);
    for (String setting : Arrays.asList(args).subList(3, args.length)) {
      String[] keyAndValue = setting.split("=", 2);
      settings.set(keyAndValue[0], keyAndValue[1]);
    }
    Path conf = Path.of(args[1]);
    Files.createDirectories(conf);
    Configuration core = new Configuration(false);
    if (settings.get("mini.kerberos") != null) {
      startKdc(new File(args[0]).getParentFile(), settings, core);
    }
    startHdfs(args[0], Integer.parseInt(args[2]), settings, core);
    write(core, conf.resolve("core-site.xml"));
    write(settings, conf.resolve("hdfs-site.xml"));
    if (settings.getInt("mini.nodemanagers", 0) > 0) {
      write(startYarn(settings, core), conf.resolve("yarn-site.xml"));
    }
    System.out.println("READY " + core.get("fs.defaultFS"));
    System.out.flush();
  }

  /** Adds what clients need to know to `core` and `settings`. */
  private static void startHdfs(
      String base, int numDataNodes, Configuration settings, Configuration core) throws Exception {
    Configuration effective = new Configuration();
    effective.addResource(core);
    effective.addResource(settings);
    effective.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, base);
    boolean twoNameNodes = settings.getInt("mini.namenodes", 1) == 2;
    MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(effective).numDataNodes(numDataNodes);
    if (twoNameNodes) {
      builder.nnTopology(MiniDFSNNTopology.simpleHATopology());
    }
    hdfs = builder.build();
    settings.setIfUnset("dfs.replication", Integer.toString(Math.min(3, numDataNodes)));
    if (!twoNameNodes) {
      hdfs.waitActive();
      String host = settings.get("mini.kerberos") != null ? "localhost" : "127.0.0.1";
      core.set("fs.defaultFS", "hdfs://" + host + ":" + hdfs.getNameNodePort());
      return;
    }
    hdfs.transitionToActive(0);
    hdfs.waitActive(0);
    core.set("fs.defaultFS", "hdfs://" + NAME_SERVICE);
    settings.set("dfs.nameservices", NAME_SERVICE);
    settings.set("dfs.ha.namenodes." + NAME_SERVICE, "nn0,nn1");
    for (int number = 0; number < 2; number++) {
      settings.set(
          "dfs.namenode.rpc-address." + NAME_SERVICE + ".nn" + number,
          "127.0.0.1:" + hdfs.getNameNodePort(number));
    }
    settings.set(
        "dfs.client.failover.proxy.provider." + NAME_SERVICE,
        "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider");
  }

  private static Configuration startYarn(Configuration settings, Configuration core) {
    Configuration effective = new YarnConfiguration();
    effective.addResource(core);
    effective.addResource(settings);
    effective.set("yarn.scheduler.minimum-allocation-mb", "128");
    effective.set("yarn.scheduler.capacity.root.queues", "default,nightly");
    effective.set("yarn.scheduler.capacity.root.default.capacity", "50");
    effective.set("yarn.scheduler.capacity.root.nightly.capacity", "50");
    effective.set("yarn.scheduler.capacity.root.default.maximum-capacity", "100");
    // Else one user gets no more than the queue's half: commands that wait for each other would for ever.
    effective.set("yarn.scheduler.capacity.root.default.user-limit-factor", "2");
    effective.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.9");
    effective.set(
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99.5");
    yarn =
        new MiniYARNCluster("yarn", settings.getInt("mini.nodemanagers", 1), 1, 1);
    yarn.init(effective);
    yarn.start();
    Configuration clients = new Configuration(false);
    // The application master's class path is then the client's: there is no Hadoop on the "nodes".
    clients.setBoolean("yarn.is.minicluster", true);
    for (String key : new String[] {"address", "scheduler.address", "webapp.address"}) {
      String full = "yarn.resourcemanager." + key;
      clients.set(full, yarn.getResourceManager().getConfig().get(full));
    }
    return clients;
  }

  /** A KDC with HDFS's own principals and the users that `mini.kerberos` names. */
  private static void startKdc(File base, Configuration settings, Configuration core)
      throws Exception {
    Properties properties = MiniKdc.createConf();
    File folder = new File(base, "kdc");
    folder.mkdirs();
    MiniKdc kdc = new MiniKdc(properties, folder);
    kdc.start();
    File keytab = new File(base, "service.keytab");
    kdc.createPrincipal(keytab, "hdfs/localhost", "HTTP/localhost");
    for (String user : settings.getStrings("mini.kerberos")) {
      kdc.createPrincipal(new File(base, user + ".keytab"), user);
    }
    Files.copy(kdc.getKrb5conf().toPath(), new File(base, "krb5.conf").toPath());
    core.set("hadoop.security.authentication", "kerberos");
    core.set("hadoop.security.authorization", "true");
    settings.set("dfs.block.access.token.enable", "true");
    settings.set("dfs.namenode.kerberos.principal", "hdfs/localhost@" + kdc.getRealm());
    settings.set("dfs.datanode.kerberos.principal", "hdfs/localhost@" + kdc.getRealm());
    settings.set("dfs.web.authentication.kerberos.principal", "HTTP/localhost@" + kdc.getRealm());
    settings.set("dfs.namenode.keytab.file", keytab.getPath());
    settings.set("dfs.datanode.keytab.file", keytab.getPath());
    // A datanode wants ports below 1024, or TLS on its web pages, which nobody looks at here.
    settings.set("ignore.secure.ports.for.testing", "true");
    Configuration effective = new Configuration();
    effective.addResource(core);
    UserGroupInformation.setConfiguration(effective);
  }

  private static void obey(String command) throws Exception {
    String[] words = command.split(" ");
    System.out.println("BEGIN " + command);
    if (words[0].equals("failover")) {
      hdfs.shutdownNameNode(activeNameNode);
      activeNameNode = 1 - activeNameNode;
      hdfs.transitionToActive(activeNameNode);
    } else if (words[0].equals("stop-datanode")) {
      hdfs.stopDataNode(Integer.parseInt(words[1]));
    } else if (words[0].equals("restart-datanode")) {
      hdfs.restartDataNode(Integer.parseInt(words[1]), true);
      // Not waitActive, which waits for a stopped namenode too.
      List<DataNode> running = hdfs.getDataNodes();
      hdfs.waitDatanodeFullyStarted(running.get(running.size() - 1), START_TIMEOUT_MS);
    } else if (words[0].equals("applications")) {
      for (RMApp app : yarn.getResourceManager().getRMContext().getRMApps().values()) {
        System.out.println(
            String.join(
                " ",
                app.getApplicationId().toString(),
                app.getName(),
                app.getQueue(),
                app.getState().toString(),
                app.getFinalApplicationStatus().toString()));
      }
    } else if (words[0].equals("calls")) {
      MetricsCollectorImpl found = new MetricsCollectorImpl();
      String source = "RpcDetailedActivityForPort" + hdfs.getNameNodePort();
      DefaultMetricsSystem.instance().getSource(source).getMetrics(found, true);
      for (AbstractMetric metric : found.getRecords().get(0).metrics()) {
        System.out.println(metric.name() + " " + metric.value());
      }
    } else {
      throw new IllegalArgumentException(command);
    }
    System.out.println("DONE " + command);
    System.out.flush();
  }

  private static void write(Configuration configuration, Path path) throws IOException {
    try (OutputStream file = Files.newOutputStream(path)) {
      configuration.writeXml(file);
    }
  }

  /**
   * Hold back each block's last acknowledgement a little. A client may close a file only once the
   * namenode has heard of its last block. Here it asks within a millisecond of that acknowledgement,
   * mostly before the datanode's report, and hdfs-native then waits half a second: for every file.
   */
  private static void reportBlocksBeforeClientsAsk() {
    DataNodeFaultInjector.set(new DataNodeFaultInjector() {
      @Override
      public void delayAckLastPacket() throws IOException {
        try {
          Thread.sleep(LAST_ACKNOWLEDGEMENT_DELAY_MS);
        } catch (InterruptedException interrupted) {
          throw new InterruptedIOException();
        }
      }
    });
  }

  private static void obeyStandardInput() {
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    Thread watcher = new Thread(() -> {
      try {
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
          obey(line);
        }
      } catch (IOException broken) {
        // A broken pipe says the same as a closed one.
      } catch (Exception error) {
        error.printStackTrace();
      }
      // Everything it wrote is the caller's to delete: there is nothing to shut down in good order.
      Runtime.getRuntime().halt(0);
    }, "standard-input");
    watcher.setDaemon(true);
    watcher.start();
  }
}
