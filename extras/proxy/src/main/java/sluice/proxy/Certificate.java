package sluice.proxy;

import io.kroxylicious.proxy.filter.FilterContext;
import io.netty.handler.ssl.SslHandler;
import java.io.IOException;
import java.security.cert.X509Certificate;
import java.util.Optional;
import javax.net.ssl.SSLPeerUnverifiedException;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * The user in the certificate of a client, named as brokers name it: its distinguished name under the mapping rules.
 *
 * <p>Kroxylicious tells filters of the certificate from 0.14 on (`clientTlsContext`). Before that it is found in the
 * client's connection, which the context's class has in a private field; where neither is there, nothing is known.
 */
final class Certificate {
    private Certificate() {}

    /** The user; whom brokers call ANONYMOUS without a certificate, without a rule for it, or if nothing can be known. */
    static String userOf(FilterContext context, SslPrincipalMapper rules) {
        try {
            Optional<X509Certificate> found = find(context);
            if (found.isPresent()) {
                return rules.getName(found.get().getSubjectX500Principal().getName());
            }
        } catch (ReflectiveOperationException | RuntimeException | IOException error) {
            // as without a certificate
        }
        return KafkaPrincipal.ANONYMOUS.getName();
    }

    private static Optional<X509Certificate> find(FilterContext context)
            throws ReflectiveOperationException, SSLPeerUnverifiedException {
        try {
            Optional<?> tls = (Optional<?>) FilterContext.class.getMethod("clientTlsContext").invoke(context);
            Class<?> type = Class.forName("io.kroxylicious.proxy.tls.ClientTlsContext");
            Optional<?> certificate = tls.isEmpty()
                    ? tls
                    : (Optional<?>) type.getMethod("clientCertificate").invoke(tls.get());
            return certificate.map(X509Certificate.class::cast);
        } catch (NoSuchMethodException error) {
            SslHandler tls = HandlerParts.channel(context).pipeline().get(SslHandler.class);
            return tls == null
                    ? Optional.empty()
                    : Optional.of((X509Certificate) tls.engine().getSession().getPeerCertificates()[0]);
        }
    }
}
