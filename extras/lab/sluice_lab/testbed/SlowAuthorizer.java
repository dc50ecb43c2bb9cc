package sluice.testbed;

import java.util.List;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/** Lets everybody in, and keeps the thread of a Produce busy for a while: a broker with too much to do on any machine. */
public final class SlowAuthorizer extends StandardAuthorizer {
    private static final long BUSY_MS = 10;

    @Override
    public List<AuthorizationResult> authorize(AuthorizableRequestContext context, List<Action> actions) {
        try {
            Thread.sleep(context.requestType() == ApiKeys.PRODUCE.id ? BUSY_MS : 0);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        return super.authorize(context, actions);
    }
}
