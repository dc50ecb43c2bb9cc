import org.apache.spark.sql.streaming.StreamingQueryListener;

/** Never returns from the first event of a query, as an operator's own listener may. */
@SuppressWarnings("serial")
public final class BlockingListener extends StreamingQueryListener {
  @Override
  public void onQueryStarted(QueryStartedEvent event) {}

  @Override
  public void onQueryProgress(QueryProgressEvent event) {
    System.err.println("the listener blocks");
    while (true) {
      try {
        Thread.sleep(Long.MAX_VALUE);
      } catch (InterruptedException interrupted) {
        // stays, whoever asks
      }
    }
  }

  @Override
  public void onQueryTerminated(QueryTerminatedEvent event) {}
}
