package sluice.spark;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * Files of checkpoints in an object store, where a file is there, whole, once its stream is closed.
 *
 * <p>Spark's own manager writes a draft, asks whether there is a file, and copies: of two drivers both may write. Here
 * the store itself refuses the second file (a conditional write), and nothing is copied. Folders are not made, as an
 * object store has none.
 */
public final class ObjectStoreFiles implements CheckpointFileManager {
    private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
    private static final FileStatus[] NONE = {};
    private static final Set<String> LOGS = Set.of("offsets", "commits"); // they have files alone
    private static final String CHANGELOG = ".changelog";

    private final FileSystem files;
    private final Path folder;
    private volatile Path next; // in a log, after the file that this driver has made last
    private Map.Entry<Path, byte[]> changelog; // that was opened for its version, and is opened again

    /** Spark looks for this constructor. */
    public ObjectStoreFiles(Path folder, Configuration configuration) throws IOException {
        this.files = folder.getFileSystem(configuration);
        this.folder = folder;
    }

    @Override
    public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
        try {
            FSDataOutputStreamBuilder<?, ?> file = files.createFile(path).overwrite(true);
            return new Written(path, (overwrite ? file : file.must(CONDITIONAL, true)).build());
        } catch (IOException error) {
            throw sneaky(error);
        }
    }

    @Override
    public FSDataInputStream open(Path path) {
        try {
            boolean isChangelog = path.getName().endsWith(CHANGELOG);
            return isChangelog ? new FSDataInputStream(new Kept(read(path))) : files.open(path);
        } catch (IOException error) {
            throw sneaky(error);
        }
    }

    /** Spark opens a changelog twice in a row, first for its version alone: the second time without a request. */
    private synchronized byte[] read(Path path) throws IOException {
        Map.Entry<Path, byte[]> kept = changelog;
        changelog = null; // another executor may replace the file later
        if (kept == null || !kept.getKey().equals(path)) {
            try (FSDataInputStream stream = files.open(path)) {
                changelog = kept = Map.entry(path, stream.readAllBytes());
            }
        }
        return kept.getValue();
    }

    @Override
    public FileStatus[] list(Path path, PathFilter filter) {
        try {
            return files.listStatus(path, filter);
        } catch (FileNotFoundException none) {
            return NONE;
        } catch (IOException error) {
            throw sneaky(error);
        }
    }

    @Override
    public void mkdirs(Path path) {}

    @Override
    @SuppressWarnings("deprecation") // S3A asks for the file alone, and not for a folder of that name
    public boolean exists(Path path) {
        try {
            // no request, as createAtomic is refused if another driver has made it; or one; or two
            return !path.equals(next) && (isInLog(path) ? files.isFile(path) : files.exists(path));
        } catch (IOException error) {
            throw sneaky(error);
        }
    }

    @Override
    public void delete(Path path) {
        try {
            files.delete(path, true);
        } catch (FileNotFoundException none) {
            return; // another driver has
        } catch (IOException error) {
            throw sneaky(error);
        }
    }

    @Override
    public boolean isLocal() {
        return false;
    }

    @Override
    public Path createCheckpointDirectory() {
        return files.makeQualified(folder);
    }

    private static boolean isInLog(Path path) {
        return path.getParent() != null && LOGS.contains(path.getParent().getName());
    }

    /** Scala declares no exceptions, so Java has to be told that this is one that needs no declaration. */
    @SuppressWarnings("unchecked")
    private static <E extends Exception> RuntimeException sneaky(Exception error) throws E {
        throw (E) error;
    }

    /** A file whose content is in memory. */
    private static final class Kept extends FSInputStream {
        private final ByteBuffer content;

        Kept(byte[] content) {
            this.content = ByteBuffer.wrap(content);
        }

        @Override
        public int read() {
            return content.hasRemaining() ? content.get() & 0xff : -1;
        }

        @Override
        public int read(byte[] target, int start, int length) {
            int count = Math.min(length, content.remaining());
            content.get(target, start, count);
            return count == 0 && length > 0 ? -1 : count;
        }

        @Override
        public void seek(long position) {
            content.position(Math.toIntExact(position));
        }

        @Override
        public long getPos() {
            return content.position();
        }

        @Override
        public boolean seekToNewSource(long position) {
            return false;
        }
    }

    private final class Written extends CancellableFSDataOutputStream {
        private final Path path;
        private final FSDataOutputStream stream;
        private boolean ended;

        Written(Path path, FSDataOutputStream stream) {
            super(stream);
            this.path = path;
            this.stream = stream;
        }

        @Override
        public synchronized void close() throws IOException {
            if (ended) {
                return;
            }
            ended = true;
            try {
                stream.close();
                next = isInLog(path) ? new Path(path.getParent(), "" + (Long.parseLong(path.getName()) + 1)) : null;
            } catch (RemoteFileChangedException refused) {
                throw new FileAlreadyExistsException(path + " is there already: another driver has made it");
            }
        }

        @Override
        public synchronized void cancel() {
            if (!ended) {
                ended = true;
                stream.abort();
            }
        }
    }
}
