package sluice.spark;

import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import software.amazon.awssdk.auth.credentials.AwsCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider;
import software.amazon.awssdk.profiles.ProfileFileSupplier;

/** The usual chain of Amazon's SDK, with a file that is read again once it has changed: by default it is read once. */
public final class RenewedCredentials implements AwsCredentialsProvider {
    private final AwsCredentialsProvider chain =
            DefaultCredentialsProvider.builder().profileFile(ProfileFileSupplier.defaultSupplier()).build();

    @Override
    public AwsCredentials resolveCredentials() {
        try {
            return chain.resolveCredentials();
        } catch (IllegalStateException error) {
            if (error.getCause() instanceof InterruptedException) { // a query is stopped: Spark has to see that
                throw new UncheckedIOException(new InterruptedIOException(error.getMessage()));
            }
            throw error;
        }
    }
}
