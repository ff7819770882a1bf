package tierfs.driver;

import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/** The {@code key=value} words of one request. A word that no one asks for is an error, so that a misspelt one is never silent. */
final class Args {
    private final Map<String, String> words = new LinkedHashMap<>();
    private final Set<String> used = new HashSet<>();

    Args(String line) {
        for (String word : line.trim().split(" +")) {
            if (word.isEmpty()) {
                continue;
            }
            int eq = word.indexOf('=');
            if (eq < 0) {
                throw new IllegalArgumentException("not key=value: " + word);
            }
            words.put(word.substring(0, eq), word.substring(eq + 1));
        }
    }

    String text(String key) {
        String value = text(key, null);
        if (value == null) {
            throw new IllegalArgumentException("missing " + key + "=");
        }
        return value;
    }

    String text(String key, String otherwise) {
        used.add(key);
        return words.getOrDefault(key, otherwise);
    }

    long number(String key) {
        return Long.parseLong(text(key));
    }

    long number(String key, long otherwise) {
        String value = text(key, null);
        return value == null ? otherwise : Long.parseLong(value);
    }

    /** All words whose key starts with the prefix, without it. */
    Map<String, String> under(String prefix) {
        Map<String, String> found = new LinkedHashMap<>();
        words.forEach((key, value) -> {
            if (key.startsWith(prefix)) {
                used.add(key);
                found.put(key.substring(prefix.length()), value);
            }
        });
        return found;
    }

    void done() {
        Set<String> left = new HashSet<>(words.keySet());
        left.removeAll(used);
        if (!left.isEmpty()) {
            throw new IllegalArgumentException("unknown words: " + left);
        }
    }
}
