import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.server.datanode.DataNodeFaultInjector;

/**
 * A real HDFS (one namenode, some datanodes) in one process, on loopback and free ports.
 *
 * <p>Usage: java -cp JARS MiniCluster.java BASE_FOLDER CONF_FOLDER NUM_DATANODES [KEY=VALUE...]
 *
 * <p>Prints "READY hdfs://127.0.0.1:PORT" once clients can connect with the configuration in
 * CONF_FOLDER, and ends when its standard input does: a parent that dies, however it dies, closes it.
 */
public class MiniCluster {
  private static final long LAST_ACKNOWLEDGEMENT_DELAY_MS = 10;

  public static void main(String[] args) throws Exception {
    dieWithStandardInput();
    reportBlocksBeforeClientsAsk();
    Configuration settings = new Configuration(false);
    for (String setting : Arrays.asList(args).subList(3, args.length)) {
      String[] keyAndValue = setting.split("=", 2);
      settings.set(keyAndValue[0], keyAndValue[1]);
    }
    Configuration effective = new Configuration();
    effective.addResource(settings);
    effective.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, args[0]);

    int numDataNodes = Integer.parseInt(args[2]);
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(effective).numDataNodes(numDataNodes).build();
    cluster.waitActive();

    String uri = "hdfs://127.0.0.1:" + cluster.getNameNodePort();
    Configuration core = new Configuration(false);
    core.set("fs.defaultFS", uri);
    write(core, Path.of(args[1], "core-site.xml"));
    settings.setIfUnset("dfs.replication", Integer.toString(Math.min(3, numDataNodes)));
    write(settings, Path.of(args[1], "hdfs-site.xml"));

    System.out.println("READY " + uri);
    System.out.flush();
    Thread.currentThread().join();
  }

  private static void write(Configuration configuration, Path path) throws IOException {
    Files.createDirectories(path.getParent());
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

  private static void dieWithStandardInput() {
    Thread watcher = new Thread(() -> {
      try {
        while (System.in.read() >= 0) {}
      } catch (IOException broken) {
        // A broken pipe says the same as a closed one.
      }
      // Everything it wrote is the caller's to delete: there is nothing to shut down in good order.
      Runtime.getRuntime().halt(0);
    }, "standard-input");
    watcher.setDaemon(true);
    watcher.start();
  }
}
