/*
 * A disk of which a quarter of the calls of one kind fail: what a put (replacing) or a deletion was answered for is so
 * ever after, also for who opens the store again, and what was put is there.
 *
 * The system calls are this program's own.  Each life of a store is a process that just ends; some close it before.
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "tests/unit/stores.h"

enum { KEYS = 24, LIVES = 4, OPS = 250, ONE_IN = 4 };

enum kind {
	SOUND, READ_FAILS, READ_SHORT, WRITE_FAILS, WRITE_SHORT, APPEND_FAILS, APPEND_SHORT, APPEND_FULL, SYNC_FAILS,
	CUT_FAILS, UNLINK_FAILS, RENAME_FAILS, OPEN_FAILS, KINDS
};

static const char *const names[KINDS] = {
	"nothing fails", "pread fails", "pread gives a part", "pwrite fails", "pwrite takes a part", "pwritev fails",
	"pwritev takes a part", "pwritev finds no room", "fdatasync fails", "ftruncate fails", "unlinkat fails",
	"renameat fails", "openat fails",
};

/* What the process that ends was told, of each key: versions [acked, tried] may be there; 0: none. */
static struct told {
	uint64_t acked[KEYS], tried[KEYS];
	bool gone[KEYS], maybe_gone[KEYS];   /* deleted: answered so; or perhaps, since then */
	uint64_t faults, answers, refused, wrong, opened;
} *told;

/* ---- the disk ---- */

static enum kind now;
static uint64_t seed, calls;

static bool fails(enum kind kind)
{
	bool is = now == kind && random_bits(seed, __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED)) % ONE_IN == 0;

	if (is)
		__atomic_add_fetch(&told->faults, 1, __ATOMIC_RELAXED);
	return is;
}

static int with(int why)
{
	errno = why;
	return -1;
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
	if (fails(READ_FAILS))
		return with(EIO);
	if (n > 1 && fails(READ_SHORT))
		n /= 2;
	return syscall(SYS_pread64, fd, p, n, at);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	if (fails(WRITE_FAILS))
		return with(EIO);
	if (n > 1 && fails(WRITE_SHORT))
		n /= 2;
	return syscall(SYS_pwrite64, fd, p, n, at);
}

ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t at)
{
	if (fails(APPEND_FAILS))
		return with(EIO);
	if (fails(APPEND_SHORT))
		return syscall(SYS_pwrite64, fd, iov->iov_base, (iov->iov_len + 1) / 2, at);
	if (fails(APPEND_FULL))
		return with(ENOSPC);
	return syscall(SYS_pwritev, fd, iov, (long)n, (long)at, 0L);
}

int fdatasync(int fd)
{
	(void)fd;
	return fails(SYNC_FAILS) ? with(EIO) : 0;
}

int fsync(int fd)
{
	(void)fd;
	return 0;
}

int ftruncate(int fd, off_t n)
{
	return fails(CUT_FAILS) ? with(EIO) : (int)syscall(SYS_ftruncate, fd, n);
}

int unlinkat(int fd, const char *name, int flags)
{
	return fails(UNLINK_FAILS) ? with(EIO) : (int)syscall(SYS_unlinkat, fd, name, flags);
}

int renameat(int a, const char *from, int b, const char *to)
{
	return fails(RENAME_FAILS) ? with(EIO) : (int)syscall(SYS_renameat2, a, from, b, to, 0);
}

int openat(int fd, const char *name, int flags, ...)
{
	return fails(OPEN_FAILS) ? with(EIO) : (int)syscall(SYS_openat, fd, name, flags, 0666);
}

/* ---- what is there ---- */

static size_t size_of(uint64_t version)
{
	static const size_t sizes[] = { 80, 3000, 20000 };

	return sizes[version % 3];
}

enum seen { NONE, RIGHT, STALE, FAILED };

/* How it is there, of all that it may be. */
static enum seen look(struct store_session *ss, uint64_t n)
{
	struct one o = { 0 };
	struct store_sink sink = { &o, one_place, one_done };
	struct store_key k = key_of(n);
	enum seen seen = STALE;
	struct ds_err err;
	size_t got = 0;

	if (store_get(ss, &k, 1, &sink, &got, &err))
		seen = FAILED;
	else if (!got)
		seen = NONE;
	for (uint64_t v = told->acked[n] + told->gone[n]; seen == STALE && v <= told->tried[n]; v++) {
		uint8_t want[20008];

		fill_item(want, size_of(v), n, v);
		if (v && o.size == size_of(v) && memcmp(o.p, want, o.size) == 0)
			seen = RIGHT;
	}
	free(o.p);
	return seen;
}

static void put_one(struct store_session *ss, uint64_t n, bool sync)
{
	struct put_how how = { .replace = true, .sync = sync, .version = ++told->tried[n] };
	enum store_put_result r;
	struct ds_err err;

	if (put_n(ss, n, size_of(how.version), &how, &r, &err)) {
		told->refused++;
		return;
	}
	told->answers++;
	told->acked[n] = how.version;
	told->gone[n] = told->maybe_gone[n] = false;
}

static void delete_one(struct store_session *ss, uint64_t n)
{
	struct store_key k = key_of(n);
	struct ds_err err;
	bool was;

	told->maybe_gone[n] = true;
	if (store_del(ss, &k, &was, &err)) {
		told->refused++;
		return;
	}
	told->answers++;
	told->acked[n] = told->tried[n];
	told->gone[n] = true;
}

static int open_again(struct store **s, const char *path, const struct store_options *o)
{
	struct ds_err err;
	char addr[600];

	snprintf(addr, sizeof addr, "dir:%s", path);
	return store_open(s, addr, o, &err);
}

static void live(const char *path, const struct store_options *o, enum kind kind, uint64_t life)
{
	struct store_session *ss;
	struct store *s;

	seed = life * KINDS + kind + (o->sync ? 1000 : 0);
	now = kind;
	if (open_again(&s, path, o)) {
		now = SOUND; /* which says so */
		s = store_at(path, o);
		now = kind;
	} else {
		told->opened++;
	}
	ss = session_of(s);
	for (uint64_t i = 0; i < OPS; i++) {
		uint64_t what = random_bits(seed + 7, i), n = what / 100 % KEYS;

		if (what % 100 < 45)
			put_one(ss, n, what % 2);
		else if (what % 100 < 55)
			delete_one(ss, n);
		else if (look(ss, n) == STALE && ++told->wrong < 5)
			tap_diag("%s, life %d: key %d: acked %d, tried %d, gone %d", names[kind], (int)life, (int)n,
				(int)told->acked[n], (int)told->tried[n], told->gone[n]);
	}
	if (life % 2) {
		store_end(ss);
		store_close(s);
	}
	_exit(0);
}

/* On a disk that is sound again. */
static void compare(const char *path, const struct store_options *o, enum kind kind)
{
	struct store *s = store_at(path, o);
	struct store_session *ss = session_of(s);
	size_t stale = 0, lost = 0;

	for (uint64_t n = 0; n < KEYS; n++) {
		enum seen seen = look(ss, n);
		bool stays = !o->capacity && kind != APPEND_FULL;
		bool must = stays && told->acked[n] && !told->gone[n] && !told->maybe_gone[n] &&
			told->tried[n] == told->acked[n];

		stale += seen == STALE || seen == FAILED;
		lost += must && seen != RIGHT;
		if (seen == STALE || (must && seen != RIGHT))
			tap_diag("key %d: acked %d, tried %d, gone %d, seen %d", (int)n, (int)told->acked[n],
				(int)told->tried[n], told->gone[n], seen);
	}
	tap_ok(!stale, "%s%s: nothing comes back", names[kind], o->sync ? ", sync" : "");
	tap_ok(!lost, "%s%s: what was put is there", names[kind], o->sync ? ", sync" : "");
	store_end(ss);
	store_close(s);
}

static void storm(enum kind kind, const struct store_options *o)
{
	const char *path = store_path("faults");
	int status = 0;

	*told = (struct told){ 0 };
	for (uint64_t life = 0; life < LIVES; life++) {
		pid_t pid = fork();

		if (!pid)
			live(path, o, kind, life);
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
			tap_bail("a store's process ended with %d", status);
		compare(path, o, kind);
	}
	tap_ok(!told->wrong, "%s%s: while it does, too", names[kind], o->sync ? ", sync" : "");
	tap_ok(told->answers && (kind == SOUND || told->faults),
		"%llu faults, %llu answers, %llu refused, %llu of %d opened", (unsigned long long)told->faults,
		(unsigned long long)told->answers, (unsigned long long)told->refused,
		(unsigned long long)told->opened, LIVES);
	store_rm(path);
}

int main(void)
{
	struct store_options o = { .segment = 64 << 10 };

	told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (told == MAP_FAILED)
		tap_bail("no memory");
	for (int sync = 0; sync < 2; sync++) {
		o.sync = sync;
		for (int kind = SOUND; kind < KINDS; kind++) {
			o.capacity = kind == UNLINK_FAILS ? 256 << 10 : 0; /* else nothing goes */
			storm((enum kind)kind, &o);
		}
	}
	return tap_done();
}
