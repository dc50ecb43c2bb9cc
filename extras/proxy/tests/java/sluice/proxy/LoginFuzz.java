package sluice.proxy;

import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.function.BiFunction;

/**
 * Logs in with mutated messages at a broker, and lets a proxy's `Login` read what passes by: whenever the broker accepts a
 * name, it has to be the proxy's.
 *
 * <p>Arguments: a seed, how many messages, and the class path of the broker's side. Prints how many of each mechanism were
 * accepted, and ends with 1 at a name that differs.
 */
public final class LoginFuzz {
    private static final String[] MECHANISMS = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"};
    private static final String[] NAMES = {
        "mallory", "victim", "a,b", "a=b", "=2C", "ü", "🦊", "x y", "User:x", "\u0001", "v", ""
    };
    private static final String[] EXTENSIONS = {
        "n=victim", "n=", "a=victim", "r=1", "tokenauth=true", "tokenauth=TRUE", "tokenauth=tRue", "tokenauth=false",
        "tokenauth=1", "tokenauth= true", "TOKENAUTH=true", "m=x", "auth=victim", "x=n=victim"
    };
    private static final String[] SUBJECTS = {
        "\"mallory\"", "\"victim\"", "\"mallory\"", "\"victim\"", "\"\"", "\" \"", "\" a \"", "true", "null", "7",
        "[\"victim\"]", "{}", "\"\\u0041\"", "\"ü\""
    };
    private static final byte[] SIGNS = "\0\1,=.nar vp{}\":\\ \u00ff".getBytes(StandardCharsets.UTF_8);
    private static final String OWNER = "owner of ";

    private final Random draw;
    private final BiFunction<String, List<byte[]>, List<Object>> broker;
    private final Map<String, int[]> counts = new TreeMap<>();
    private Login login = new Login();

    private LoginFuzz(long seed, BiFunction<String, List<byte[]>, List<Object>> broker) {
        this.draw = new Random(seed);
        this.broker = broker;
    }

    public static void main(String[] arguments) throws Exception {
        List<URL> urls = new ArrayList<>();
        for (String path : arguments[2].split(File.pathSeparator)) {
            urls.add(new File(path).toURI().toURL());
        }
        try (URLClassLoader loader =
                new URLClassLoader(urls.toArray(new URL[0]), ClassLoader.getPlatformClassLoader())) {
            Object broker = loader.loadClass("sluice.broker.BrokerLogin").getConstructor().newInstance();
            @SuppressWarnings("unchecked")
            BiFunction<String, List<byte[]>, List<Object>> side = (BiFunction<String, List<byte[]>, List<Object>>) broker;
            LoginFuzz fuzz = new LoginFuzz(Long.parseLong(arguments[0]), side);
            for (int number = 0; number < Integer.parseInt(arguments[1]); number++) {
                fuzz.logIn(number);
            }
            fuzz.sendTooMuch();
            fuzz.counts.forEach((mechanism, count) -> System.out.println(mechanism + " " + count[0] + " " + count[1]));
        }
    }

    private void logIn(int number) {
        String mechanism = MECHANISMS[draw.nextInt(MECHANISMS.length)];
        List<byte[]> messages = new ArrayList<>();
        for (int more = draw.nextInt(4) == 0 ? 2 : 1; more > 0; more--) {
            messages.add(mutated(message(mechanism)));
        }
        List<Object> passed = broker.apply(mechanism, messages);
        String name = (String) passed.get(passed.size() - 1);
        login.begin(mechanism, (short) 1);
        for (int at = 0; at < passed.size() - 1; at += 2) {
            String fault = login.send((byte[]) passed.get(at));
            check(fault == null, number, mechanism, messages, fault);
            if (passed.get(at + 1) != null) {
                login.accept((byte[]) passed.get(at + 1));
            }
        }
        count(mechanism, name);
        if (name == null) {
            login = new Login(); // the connection is closed
            return;
        }
        String wanted = name.startsWith(OWNER) ? Login.UNREADABLE : name;
        check(login.user().equals(wanted), number, mechanism, messages, name + " is " + login.user());
    }

    /** Kafka's expressions need a frame of the stack for each part; a broker may have more of it than a proxy. */
    private void sendTooMuch() {
        String message = "n,,n=mallory,r=nonce" + ",x=y".repeat(100_000);
        login = new Login();
        login.begin("SCRAM-SHA-256", (short) 1);
        check(login.send(message.getBytes(StandardCharsets.UTF_8)) != null, -1, "SCRAM-SHA-256", List.of(), "too much");
    }

    private void count(String mechanism, String name) {
        String kind = name != null && name.startsWith(OWNER) ? "token" : mechanism;
        counts.computeIfAbsent(kind, key -> new int[2])[0]++;
        counts.get(kind)[1] += name == null ? 0 : 1;
    }

    private static void check(boolean isRight, int number, String mechanism, List<byte[]> messages, String what) {
        if (!isRight) {
            System.out.println("login " + number + ", " + mechanism + ": " + what);
            messages.forEach(each -> System.out.println(Base64.getEncoder().encodeToString(each)));
            System.exit(1);
        }
    }

    private byte[] message(String mechanism) {
        String name = one(NAMES);
        String other = draw.nextInt(4) == 0 ? one(NAMES) : name;
        String text;
        if (mechanism.equals("PLAIN")) {
            text = (draw.nextBoolean() ? "" : other) + "\0" + name + "\0" + "password";
        } else if (mechanism.equals("OAUTHBEARER")) {
            text = "n," + authorizationId(other) + ",\1" + bearer();
        } else {
            text = "n," + authorizationId(other) + ",n=" + saslName(name) + ",r=nonce" + extensions();
        }
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private String authorizationId(String name) {
        return draw.nextInt(3) > 0 ? "" : "a=" + saslName(name);
    }

    private static String saslName(String name) {
        return name.replace("=", "=3D").replace(",", "=2C");
    }

    private String extensions() {
        StringBuilder text = new StringBuilder();
        while (draw.nextInt(3) == 0) {
            text.append(",").append(one(EXTENSIONS));
        }
        return text.toString();
    }

    private String bearer() {
        StringBuilder text = new StringBuilder();
        do {
            text.append(draw.nextInt(8) == 0 ? "x" : one(new String[] {"auth", "auth", "auth", "Auth", "AUTH"})).append("=");
            text.append(one(new String[] {"Bearer ", "bearer ", "BEARER  "})).append(token()).append("\1");
        } while (draw.nextInt(3) == 0);
        return text + "\1";
    }

    private String token() {
        String claims = "{\"exp\":4102444800,\"sub\":" + one(SUBJECTS);
        claims += draw.nextInt(6) == 0 ? ",\"sub\":" + one(SUBJECTS) + "}" : "}";
        boolean isSigned = draw.nextInt(8) == 0; // which this broker refuses
        return encoded("{\"alg\":\"none\"}") + "." + encoded(claims) + "." + (isSigned ? "c2lnbmVk" : "");
    }

    private static String encoded(String text) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    private byte[] mutated(byte[] message) {
        byte[] changed = message;
        for (int left = draw.nextBoolean() ? 0 : 1 + draw.nextInt(3); left > 0; left--) {
            changed = draw.nextInt(5) == 0 ? repeated(changed) : replaced(changed);
        }
        return changed;
    }

    /** With a part of it once more somewhere else. */
    private byte[] repeated(byte[] message) {
        int from = draw.nextInt(message.length + 1);
        byte[] part = Arrays.copyOfRange(message, from, from + draw.nextInt(message.length + 1 - from));
        return spliced(message, draw.nextInt(message.length + 1), 0, part);
    }

    /** With a byte that is another, or more, or less. */
    private byte[] replaced(byte[] message) {
        byte sign = draw.nextBoolean() ? SIGNS[draw.nextInt(SIGNS.length)] : (byte) draw.nextInt(256);
        byte[] added = draw.nextInt(3) == 0 ? new byte[0] : new byte[] {sign};
        int at = draw.nextInt(message.length + 1);
        int removed = Math.min(draw.nextInt(2), message.length - at);
        return spliced(message, at, removed, added);
    }

    private static byte[] spliced(byte[] message, int at, int removed, byte[] added) {
        byte[] after = new byte[message.length - removed + added.length];
        System.arraycopy(message, 0, after, 0, at);
        System.arraycopy(added, 0, after, at, added.length);
        System.arraycopy(message, at + removed, after, at + added.length, message.length - at - removed);
        return after;
    }

    private String one(String[] of) {
        return of[draw.nextInt(of.length)];
    }
}
