import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.HadoopReadOptions;
import org.apache.parquet.column.page.PageReadStore;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.example.data.simple.convert.GroupRecordConverter;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.parquet.io.ColumnIOFactory;
import org.apache.parquet.io.MessageColumnIO;
import org.apache.parquet.io.RecordReader;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.PrimitiveType;
import org.apache.parquet.schema.PrimitiveType.PrimitiveTypeName;

/** Prints parquet files as parquet-java reads them: the rows of each, read in so many shares. */
public final class ReadParquet {
  public static void main(String[] args) throws Exception {
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    int numShares = Integer.parseInt(args[0]);
    for (int argument = 1; argument < args.length; argument++) {
      HadoopInputFile file = HadoopInputFile.fromPath(new Path(args[argument]), new Configuration());
      out.println("FILE " + args[argument]);
      for (int share = 0; share < numShares; share++)
        read(file, file.getLength() * share / numShares, file.getLength() * (share + 1) / numShares, out);
    }
    out.flush();
  }

  // What lies between two bytes of the file, which is how Spark and MapReduce share one out.
  private static void read(HadoopInputFile file, long start, long stop, PrintStream out) throws Exception {
    var options = HadoopReadOptions.builder(new Configuration()).withRange(start, stop).build();
    try (ParquetFileReader reader = ParquetFileReader.open(file, options)) {
      MessageType schema = reader.getFileMetaData().getSchema();
      MessageColumnIO columns = new ColumnIOFactory().getColumnIO(schema);
      for (PageReadStore group; (group = reader.readNextRowGroup()) != null; ) {
        RecordReader<Group> rows = columns.getRecordReader(group, new GroupRecordConverter(schema));
        for (long row = 0; row < group.getRowCount(); row++) out.println(line(rows.read(), schema));
      }
    }
  }

  private static String line(Group row, MessageType schema) {
    StringBuilder line = new StringBuilder();
    for (int field = 0; field < schema.getFieldCount(); field++) {
      line.append(field == 0 ? "" : "\t");
      if (schema.getType(field).isPrimitive()) {
        PrimitiveType type = schema.getType(field).asPrimitiveType();
        boolean isText = type.getPrimitiveTypeName() != PrimitiveTypeName.BINARY
            || type.getLogicalTypeAnnotation() != null;
        line.append(isText ? row.getValueToString(field, 0)
            : HexFormat.of().formatHex(row.getBinary(field, 0).getBytes()));
        continue;
      }
      Group list = row.getGroup(field, 0);
      for (int place = 0; place < list.getFieldRepetitionCount(0); place++)
        line.append(place == 0 ? "" : ",").append(list.getGroup(0, place).getValueToString(0, 0));
    }
    return line.toString();
  }
}
