/*
 * Processes that put items are killed at random instants, 200 times; then the same with a disk that fails: what was
 * acknowledged with sync is there, what is replaced or deleted stays so, and nothing that can be read is wrong.
 *
 * The system calls by which segments are written are this program's own, so that they can fail.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "base/time.h"
#include "tests/unit/stores.h"

enum faults { SOUND, FAILS, FULL };

enum { SYNCED_MAX = 1 << 16, NAMES = 8, NAMED = 1000000, THREADS = 4, SIZE_MOST = 40000, SINCE = 16 };

/* What the process that is killed has been told. */
static struct told {
	uint64_t next, put_upto;             /* numbers of items; all below were tried */
	uint8_t synced[SYNCED_MAX];
	/* Of items that are replaced; odd: deleted.  since: what was tried after the version that was acknowledged
	 * last, in lives that ended before they were told: any of it may have been done. */
	struct named { uint64_t version, tried, since[SINCE]; unsigned n; } named[THREADS * NAMES];
	uint64_t faults, refused;
} *told;

/* ---- what is on disk ---- */

/* Files by descriptor: written to since they were last brought to disk; the directory: whether it was since a file was
 * made. */
static struct { uint64_t dirty[256], removed_dirty, syncs; bool watch, named; } disk;

/* What a machine that loses its power keeps of segments at least: names that are on disk, so many bytes. */
static struct kept { char name[64]; off_t size; bool named; } kept[64];
static size_t kept_count;

static void keep(int fd)
{
	char link[64], to[600];
	const char *name;
	struct stat st;
	ssize_t n;
	size_t i = 0;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	n = readlink(link, to, sizeof to - 1);
	if (n <= 0 || fstat(fd, &st))
		return;
	to[n] = 0;
	name = strrchr(to, '/') + 1;
	while (i < kept_count && strcmp(kept[i].name, name) != 0)
		i++;
	if (i == 64 || !S_ISREG(st.st_mode))
		return;
	snprintf(kept[i].name, sizeof kept[i].name, "%.63s", name);
	kept[i].size = st.st_size;
	kept_count += i == kept_count;
}

static size_t all_dirty(void)
{
	size_t n = 0;

	for (int i = 0; i < 256; i++)
		n += disk.dirty[i] != 0;
	return n;
}

/* ---- a disk that fails ---- */

static struct { bool on, full; uint64_t seed, count; int torn; } faulty; /* full: also of a disk that is */

static unsigned chance(unsigned one_in)
{
	uint64_t n = __atomic_add_fetch(&faulty.count, 1, __ATOMIC_RELAXED);

	return faulty.on && random_bits(faulty.seed, n) % one_in == 0;
}

static int fail_with(int why)
{
	__atomic_add_fetch(&told->faults, 1, __ATOMIC_RELAXED);
	errno = why;
	return -1;
}

ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t at)
{
	size_t all = 0;

	for (int i = 0; i < n; i++)
		all += iov[i].iov_len;
	if (disk.watch && fd < 256) {
		disk.dirty[fd] += all;
		disk.named = disk.named && at;
	}
	if (chance(40))
		return fail_with(faulty.full ? ENOSPC : EIO);
	if (all && chance(10)) { /* a part of the first piece */
		size_t part = 1 + random_bits(faulty.seed, faulty.count) % all;

		__atomic_add_fetch(&told->faults, 1, __ATOMIC_RELAXED);
		part = part < iov->iov_len ? part : iov->iov_len;
		if (faulty.torn && random_bits(faulty.seed, faulty.count + 1) % (unsigned)faulty.torn == 0) {
			syscall(SYS_pwrite64, fd, iov->iov_base, part, at);
			kill(getpid(), SIGKILL);
		}
		if (part)
			return syscall(SYS_pwrite64, fd, iov->iov_base, part, at);
	}
	return syscall(SYS_pwritev, fd, iov, (long)n, (long)at, 0L);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	return chance(40) ? fail_with(EIO) : syscall(SYS_pwrite64, fd, p, n, at);
}

ssize_t write(int fd, const void *p, size_t n)
{
	return fd > 2 && chance(40) ? fail_with(faulty.full ? ENOSPC : EIO) : syscall(SYS_write, fd, p, n);
}

int fdatasync(int fd)
{
	if (disk.watch && fd < 256) {
		disk.dirty[fd] = 0;
		disk.syncs++;
		keep(fd);
	}
	return chance(60) ? fail_with(EIO) : (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
	disk.named = true;
	for (size_t i = 0; i < kept_count; i++)
		kept[i].named = true;
	return (int)syscall(SYS_fsync, fd);
}

/* What was moved out of a segment is on disk before that is removed. */
int unlinkat(int dir, const char *name, int flags)
{
	size_t n = strlen(name);

	if (disk.watch && n > 4 && strcmp(name + n - 4, ".seg") == 0)
		disk.removed_dirty += all_dirty() > 1; /* the one that is written for puts is not */
	return (int)syscall(SYS_unlinkat, dir, name, flags);
}

int ftruncate(int fd, off_t n)
{
	return chance(20) ? fail_with(EIO) : (int)syscall(SYS_ftruncate, fd, n);
}

/* ---- the storm ---- */

static size_t size_of(uint64_t n)
{
	return random_bits(3, n) % SIZE_MOST;
}

static void tries(struct named *k, uint64_t v)
{
	k->tried = v;
	k->since[k->n % SINCE] = v;
	k->n++;
}

static void was_told(struct named *k)
{
	k->version = k->tried;
	k->n = 0;
}

static void put_some(struct store_session *ss, size_t thread)
{
	enum store_put_result r;
	struct ds_err err;

	for (;;) {
		uint64_t n = __atomic_fetch_add(&told->next, 1, __ATOMIC_RELAXED), i = thread * NAMES + n % NAMES;
		struct put_how how = { .sync = n % 2 == 0 };

		if (n >= SYNCED_MAX)
			return;
		if (put_n(ss, n, size_of(n), &how, &r, &err))
			__atomic_add_fetch(&told->refused, 1, __ATOMIC_RELAXED);
		else if (how.sync)
			__atomic_store_n(&told->synced[n], 1, __ATOMIC_RELEASE);
		if (n % 4 != 1)
			continue;
		/* one that is replaced, or deleted, by this thread alone */
		if (random_bits(4, n) % 4) {
			uint64_t v = (told->named[i].tried | 1) + 1;
			struct put_how again = { .replace = true, .version = v };

			tries(&told->named[i], v);
			if (!put_n(ss, NAMED + i, 3000, &again, &r, &err))
				was_told(&told->named[i]);
		} else {
			struct store_key k = key_of(NAMED + i);
			bool was;

			tries(&told->named[i], told->named[i].tried | 1);
			if (!store_del(ss, &k, &was, &err))
				was_told(&told->named[i]);
		}
	}
}

struct putter { struct store *s; size_t thread; };

static void *putter(void *ctx)
{
	const struct putter *p = ctx;
	struct store_session *ss = session_of(p->s);

	put_some(ss, p->thread);
	store_end(ss);
	return NULL;
}

static void storm(const char *path, const struct store_options *o, int threads)
{
	struct store *s;
	struct ds_err err;
	char addr[600];
	struct putter p[THREADS];
	pthread_t t[THREADS];

	snprintf(addr, sizeof addr, "dir:%s", path);
	if (store_open(&s, addr, o, &err))
		_exit(0); /* a disk that fails already then */
	for (int i = 0; i < threads; i++) {
		p[i] = (struct putter){ s, (size_t)i };
		pthread_create(&t[i], NULL, putter, &p[i]);
	}
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	_exit(0);
}

static void say(void *ctx, const char *line)
{
	(void)ctx;
	tap_diag("%s", line);
}

/* Item i of those that are replaced is as it was told last, or as one of those made it who were not told any more. */
static bool named_right(struct store_session *ss, uint64_t i)
{
	const struct named *k = &told->named[i];
	/* Of one that was half deleted, has may not know yet. */
	bool gone = get_n(ss, NAMED + i, 3000, k->version) == GET_MISS, ok = gone && !k->version;

	for (unsigned n = 0; n <= k->n && n <= SINCE && !ok; n++) {
		uint64_t v = n ? k->since[n - 1] : k->version;

		ok = gone ? v & 1 : !(v & 1) && get_n(ss, NAMED + i, 3000, v) == GET_RIGHT;
	}
	if (!ok)
		tap_diag("name %d: told %d, tried %d, %u since, gone %d", (int)i, (int)k->version, (int)k->tried, k->n,
			gone);
	return ok;
}

/* What must hold whenever nothing runs. */
static void check(const char *path, const struct store_options *o, const char *when, bool synced, bool named)
{
	struct store *s;
	struct store_session *ss;
	struct dir_report rep;
	struct ds_err err;
	size_t lost = 0, wrong = 0, stale = 0, there = 0;
	int rc;

	faulty.on = false;
	s = store_at(path, o);
	ss = session_of(s);
	for (uint64_t n = 0; n < told->next && n < SYNCED_MAX; n++) {
		enum get_result r = get_n(ss, n, size_of(n), 0);

		wrong += r == GET_WRONG;
		lost += synced && r != GET_RIGHT && told->synced[n]; /* a full disk is made room on */
		there += r == GET_RIGHT;
	}
	for (uint64_t i = 0; named && i < THREADS * NAMES; i++)
		stale += !named_right(ss, i);
	store_end(ss);
	store_close(s);
	tap_ok(there > 20 && (!synced || there > told->next / 4), "%s: items are there", when);
	tap_is_int((long long)wrong, 0, "nothing is wrong");
	tap_is_int((long long)lost, 0, "what was acknowledged with sync is there");
	tap_is_int((long long)stale, 0, "what was replaced or deleted is as it was acknowledged");
	rc = dir_verify(path, say, NULL, &rep, &err);
	tap_ok(!rc && !rep.torn_bytes && !rep.bad_indices, "verify finds nothing: %s", rc ? err.text : "");
	tap_diag("%zu of %zu items, %zu segments; %zu faults, %zu refused", there, (size_t)told->next,
		(size_t)rep.segments,
		(size_t)told->faults, (size_t)told->refused);
}

/* Two processes at once, with less room than they need; both are killed. */
static void kill_both(const char *path, const struct store_options *o, int kills)
{
	for (int i = 0; i < kills; i++) {
		struct timespec t = { 0, (long)(random_bits(12, (uint64_t)i) % 40000000) };
		pid_t pid[2];

		for (int k = 0; k < 2; k++) {
			pid[k] = fork();
			if (!pid[k])
				storm(path, o, 2);
		}
		nanosleep(&t, NULL);
		for (int k = 0; k < 2; k++)
			kill(pid[k], SIGKILL);
		for (int k = 0; k < 2; k++)
			waitpid(pid[k], NULL, 0);
	}
}

static void kill_storm(const char *path, const struct store_options *o, int kills, int threads, enum faults faults)
{
	for (int i = 0; i < kills; i++) {
		uint64_t ns = random_bits(9, (uint64_t)i) % 30000000;
		struct timespec t = { 0, (long)ns };
		pid_t pid = fork();

		if (!pid) {
			faulty.on = faults != SOUND;
			faulty.full = faults == FULL;
			faulty.seed = (uint64_t)i;
			faulty.torn = 10;
			storm(path, o, threads);
		}
		nanosleep(&t, NULL);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
}

static void run(const char *name, const char *when, const struct store_options *o, int kills, int threads,
	enum faults faults)
{
	const char *path = store_path(name);

	memset(told, 0, sizeof *told);
	kill_storm(path, o, kills, threads, faults);
	check(path, o, when, faults != FULL, !faults);
	store_rm(path);
}

static void run_both(const char *name, int kills)
{
	struct store_options o = { .segment = 64 << 10, .capacity = 2 << 20 };
	const char *path = store_path(name);

	memset(told, 0, sizeof *told);
	kill_both(path, &o, kills);
	check(path, &o, "two processes that make room, killed", false, false);
	store_rm(path);
}

/* The order in which things reach the disk, by one thread. */
static void order(void)
{
	const char *path = store_path("order");
	struct store_options o = { .segment = 64 << 10, .capacity = 1 << 20 };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	enum store_put_result r;
	struct ds_err err;
	size_t late = 0, unnamed = 0, wrong = 0;

	memset(&disk, 0, sizeof disk);
	disk.watch = true;
	for (uint64_t n = 0; n < 500; n++) {
		struct put_how how = { .sync = n % 3 == 0 };

		wrong += put_n(ss, n, 5000, &how, &r, &err) != 0;
		late += how.sync && all_dirty();
		unnamed += how.sync && !disk.named;
		for (uint64_t i = 0; i < 10; i++) /* these are moved on for ever */
			wrong += get_n(ss, i, 5000, 0) == GET_WRONG;
	}
	tap_ok(!wrong && stat_of(ss).moved_bytes > 20000, "items are put and moved");
	tap_ok(disk.syncs >= 167, "fdatasync is called");
	tap_is_int((long long)late, 0, "whatever was written is on disk before a put with sync is answered");
	tap_is_int((long long)unnamed, 0, "so is the name of its file");
	tap_is_int((long long)disk.removed_dirty, 0, "and what was moved, before it is removed where it was");
	tap_ok(!put_n(ss, 1000, 500, NULL, &r, &err) && all_dirty() && !put_n(ss, 1000, 500,
		&(struct put_how){ .sync = true }, &r, &err) && r == STORE_ALREADY && !all_dirty(),
		"what is there already is on disk before that is said");
	disk.watch = false;
	store_end(ss);
	store_close(s);
	store_rm(path);
}

/* The directory as it is found after the power was lost: of each segment what was brought to disk, then zeros up to
 * the length that it had, or nothing; files beside segments are there. */
static void after_power(const char *from, const char *to, bool zeros)
{
	char names[64][64], a[700], command[1500];
	int n = store_files(from, ".seg", names, 64);

	snprintf(command, sizeof command, "cp -r '%s' '%s'", from, to);
	if (system(command))
		tap_bail("cannot copy %s", from);
	for (int i = 0; i < n; i++) {
		struct stat st;
		size_t k = 0;

		snprintf(a, sizeof a, "%s/%.63s", to, names[i]);
		while (k < kept_count && strcmp(kept[k].name, names[i]) != 0)
			k++;
		if (k == kept_count || !kept[k].named)
			unlink(a);
		else if (stat(a, &st) || truncate(a, kept[k].size) || (zeros && truncate(a, st.st_size)))
			tap_bail("cannot cut %s", a);
	}
}

static void power(bool zeros)
{
	char path[500], other[500];
	struct store_options o = { .segment = 64 << 10 };
	struct store *s;
	struct store_session *ss;
	enum store_put_result r;
	struct ds_err err;
	size_t lost = 0, wrong = 0, more = 0;

	snprintf(path, sizeof path, "%s", store_path("power"));
	snprintf(other, sizeof other, "%s", store_path("power2"));
	memset(&disk, 0, sizeof disk);
	kept_count = 0;
	s = store_at(path, &o);
	ss = session_of(s);
	disk.watch = true;
	for (uint64_t n = 0; n < 230; n++)
		wrong += put_n(ss, n, 2000, &(struct put_how){ .sync = n % 10 == 9 && n < 200 }, &r, &err) != 0;
	disk.watch = false;
	after_power(path, other, zeros);
	store_end(ss);
	store_close(s);
	s = store_at(other, &o);
	ss = session_of(s);
	for (uint64_t n = 0; n < 230; n++) {
		enum get_result g = get_n(ss, n, 2000, 0);

		wrong += g == GET_WRONG;
		lost += n < 200 && n % 10 == 9 && g != GET_RIGHT;
		more += g == GET_RIGHT;
	}
	tap_ok(!wrong && !lost,
		"what was promised survives a loss of power, the rest is right or gone: %zu of 230 there",
		more);
	store_end(ss);
	store_close(s);
	store_rm(path);
	store_rm(other);
}

int main(void)
{
	struct store_options o = { .segment = 1 << 20 };
	int kills = tap_slow() ? 40 : 200;

	told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	order();
	power(false);
	power(true);
	run("killed", "killed while one thread put", &o, kills / 2, 1, SOUND);
	run("killed4", "killed while four threads put", &o, kills / 2, THREADS, SOUND);
	run("faulty", "a disk that fails", &o, kills / 4, 3, FAILS);
	run_both("both", kills / 4);
	run("full", "a disk that is full", &o, kills / 4, 3, FULL);
	return tap_done();
}
