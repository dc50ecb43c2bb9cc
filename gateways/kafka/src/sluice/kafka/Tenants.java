package sluice.kafka;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;

/**
 * Tenants: named groups of users and client-ids, by names and globs. A client is in at most one.
 *
 * <p>The same rules as `state/quotas/tenants.py`: of the members that match a client the first one counts. Members are
 * added before any thread but the first asks.
 */
final class Tenants {
    private final ByEnds byUser = new ByEnds();
    private final ByEnds byClientId = new ByEnds();

    /** Adds a member; a glob that it doesn't have is "". */
    void add(String tenant, String user, String clientId) {
        Member member = new Member(tenant, user, clientId);
        if (user.isEmpty()) {
            byClientId.add(clientId, member);
        } else {
            byUser.add(user, member);
        }
    }

    /** The tenant of a client; "" if it is in none. */
    String of(String user, String clientId) {
        Member first = byUser.first(user, user, clientId);
        if (first == null) {
            first = byClientId.first(clientId, user, clientId);
        }
        return first == null ? "" : first.tenant;
    }

    /** Whether a glob matches a name: `*` is any characters, `?` is one. Large and small letters differ. */
    static boolean matches(String glob, String name) {
        int inGlob = 0;
        int inName = 0;
        int star = -1; // the last one, and what it matches so far ends before `after`
        int after = 0;
        while (inName < name.length()) {
            char next = inGlob < glob.length() ? glob.charAt(inGlob) : 0;
            if (inGlob < glob.length() && next == '*') {
                star = inGlob++;
                after = inName;
            } else if (inGlob < glob.length() && next == '?') {
                inGlob++;
                inName = name.offsetByCodePoints(inName, 1);
            } else if (inGlob < glob.length() && next == name.charAt(inName)) {
                inGlob++;
                inName++;
            } else if (star >= 0) {
                inGlob = star + 1;
                after = name.offsetByCodePoints(after, 1);
                inName = after;
            } else {
                return false;
            }
        }
        while (inGlob < glob.length() && glob.charAt(inGlob) == '*') {
            inGlob++;
        }
        return inGlob == glob.length();
    }

    private static boolean isGlob(String text) {
        return text.indexOf('*') >= 0 || text.indexOf('?') >= 0;
    }

    /** A member of a tenant. The least of those that match a client counts. */
    private static final class Member {
        private static final Comparator<String> BY_CODE_POINTS =
                (one, other) -> Arrays.compare(one.codePoints().toArray(), other.codePoints().toArray());
        private static final Comparator<Member> ORDER = Comparator.<Member>comparingInt(member -> member.parts)
                .thenComparingInt(member -> member.globs)
                .thenComparingInt(member -> -member.characters)
                .thenComparing(member -> member.tenant, BY_CODE_POINTS)
                .thenComparing(member -> member.user, BY_CODE_POINTS)
                .thenComparing(member -> member.clientId, BY_CODE_POINTS);

        private final String tenant;
        private final String user;
        private final String clientId;

        /** 0 for a user and a client-id, 1 for a user, 2 for a client-id. */
        private final int parts;

        private final int globs;

        /** How many are no wildcards. */
        private final int characters;

        Member(String tenant, String user, String clientId) {
            this.tenant = tenant;
            this.user = user;
            this.clientId = clientId;
            this.parts = user.isEmpty() ? 2 : clientId.isEmpty() ? 1 : 0;
            this.globs = (isGlob(user) ? 1 : 0) + (isGlob(clientId) ? 1 : 0);
            this.characters = (int) (user + clientId).codePoints().filter(each -> each != '*' && each != '?').count();
        }

        boolean has(String anyUser, String anyClientId) {
            return (user.isEmpty() || matches(user, anyUser)) && (clientId.isEmpty() || matches(clientId, anyClientId));
        }
    }

    /**
     * Members by what a glob begins with, up to the first wildcard, or else by what it ends with, so that a name is compared
     * with few of them.
     */
    private static final class ByEnds {
        private final Map<String, List<Member>> byBeginning = new HashMap<>();
        private final Map<String, List<Member>> byEnd = new HashMap<>();
        private final TreeSet<Integer> beginnings = new TreeSet<>();
        private final TreeSet<Integer> ends = new TreeSet<>();

        void add(String glob, Member member) {
            String beginning = glob.split("[*?]", 2)[0];
            String end = glob.substring(Math.max(glob.lastIndexOf('*'), glob.lastIndexOf('?')) + 1);
            boolean hasBeginning = !beginning.isEmpty();
            String fixed = hasBeginning ? beginning : end;
            (hasBeginning ? byBeginning : byEnd).computeIfAbsent(fixed, key -> new ArrayList<>()).add(member);
            (hasBeginning ? beginnings : ends).add(fixed.length());
        }

        /** The first member that has a client, whose user or client-id `name` is; null if there is none. */
        Member first(String name, String user, String clientId) {
            Member first = null;
            for (int length : beginnings.headSet(name.length(), true)) {
                List<Member> near = byBeginning.getOrDefault(name.substring(0, length), List.of());
                first = first(first, near, user, clientId);
            }
            for (int length : ends.headSet(name.length(), true)) {
                List<Member> near = byEnd.getOrDefault(name.substring(name.length() - length), List.of());
                first = first(first, near, user, clientId);
            }
            return first;
        }

        private static Member first(Member first, List<Member> near, String user, String clientId) {
            Member least = first;
            for (Member member : near) {
                if ((least == null || Member.ORDER.compare(member, least) < 0) && member.has(user, clientId)) {
                    least = member;
                }
            }
            return least;
        }
    }
}
