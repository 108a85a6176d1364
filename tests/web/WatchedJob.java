import java.nio.file.Files;
import java.nio.file.Path;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/** A whole Flink in one process, with one job: arguments are a port and a directory. */
public class WatchedJob {
    public static void main(String[] arguments) throws Exception {
        String directory = Path.of(arguments[1]).toUri().toString();
        String failing = Path.of(arguments[1], "fail").toString();
        Configuration settings = new Configuration();
        settings.setString("rest.port", arguments[0]);
        settings.setString("rest.address", "127.0.0.1");
        settings.setString("rest.bind-address", "127.0.0.1");
        settings.setString("execution.checkpointing.interval", "400ms");
        settings.setString("execution.checkpointing.dir", directory + "/checkpoints");
        settings.setString("execution.checkpointing.savepoint-dir", directory + "/savepoints");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "100");
        settings.setString("restart-strategy.fixed-delay.delay", "100ms");
        settings.setString("taskmanager.numberOfTaskSlots", "2");
        settings.setString("taskmanager.memory.network.min", "16m");
        settings.setString("taskmanager.memory.network.max", "16m");
        settings.setString("taskmanager.memory.managed.size", "16m");
        settings.setString("web.submit.enable", "false");
        StreamExecutionEnvironment flink =
                StreamExecutionEnvironment.createLocalEnvironmentWithWebUI(settings);
        flink.setParallelism(2);
        flink.fromSequence(0, Long.MAX_VALUE)
                .map(number -> slow(number, failing))
                .returns(Long.class)
                .keyBy(number -> number % 16)
                .process(new Counted())
                .sinkTo(new DiscardingSink<>());
        flink.execute("counted");
    }

    private static Long slow(Long number, String failing) throws Exception {
        Thread.sleep(1);
        if (number % 16 == 0 && Files.deleteIfExists(Path.of(failing))) {
            throw new IllegalStateException("The test asked for this failure.");
        }
        return number;
    }

    private static class Counted extends KeyedProcessFunction<Long, Long, Long> {
        private static final long serialVersionUID = 1L;
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext()
                    .getState(new ValueStateDescriptor<>("count", Long.class));
        }

        @Override
        public void processElement(Long number, Context context, Collector<Long> output)
                throws Exception {
            Long before = count.value();
            count.update(before == null ? 1L : before + 1);
            output.collect(count.value());
        }
    }
}
