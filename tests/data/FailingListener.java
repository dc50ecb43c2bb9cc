import org.apache.spark.sql.streaming.StreamingQueryListener;

/** Fails as one does that was compiled for another version of Spark. */
@SuppressWarnings("serial")
public final class FailingListener extends StreamingQueryListener {
  @Override
  public void onQueryStarted(QueryStartedEvent event) {}

  @Override
  public void onQueryProgress(QueryProgressEvent event) {
    throw new NoSuchMethodError("of another Spark");
  }

  @Override
  public void onQueryTerminated(QueryTerminatedEvent event) {}
}
