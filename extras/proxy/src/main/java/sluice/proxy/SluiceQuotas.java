package sluice.proxy;

import io.kroxylicious.proxy.filter.Filter;
import io.kroxylicious.proxy.filter.FilterFactory;
import io.kroxylicious.proxy.filter.FilterFactoryContext;
import io.kroxylicious.proxy.plugin.Plugin;
import io.kroxylicious.proxy.plugin.PluginConfigurationException;
import java.util.Map;
import org.apache.kafka.common.config.ConfigException;
import sluice.kafka.ProxySettings;

/** Makes a Kroxylicious proxy a gateway of Sluice: a filter definition of type `SluiceQuotas`, with properties as config. */
@Plugin(configType = Map.class)
public final class SluiceQuotas implements FilterFactory<Map<String, Object>, Proxy> {
    @Override
    public Proxy initialize(FilterFactoryContext context, Map<String, Object> config) {
        try {
            return new Proxy(new ProxySettings(config == null ? Map.of() : config));
        } catch (ConfigException error) {
            throw new PluginConfigurationException(error.getMessage(), error);
        }
    }

    @Override
    public Filter createFilter(FilterFactoryContext context, Proxy proxy) {
        return new QuotaFilter(proxy, context.filterDispatchExecutor());
    }

    @Override
    public void close(Proxy proxy) {
        proxy.close();
    }
}
