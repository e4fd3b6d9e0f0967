/*
 * A disk that is full from one moment on, with pinned items among others: what the store no longer knows is not in its
 * files either, so that nothing that was deleted or replaced comes back.
 *
 * The system call by which segments are written is this program's own, so that it can fail.
 */
#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/unit/stores.h"

enum { ITEMS = 6, PINNED = 4, SIZE = 3000 };

static bool full;

ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t at)
{
	if (full) {
		errno = ENOSPC;
		return -1;
	}
	return syscall(SYS_pwritev, fd, iov, (long)n, (long)at, 0L);
}

static struct store_key pinned_key(void) { return key_of(PINNED); }

/* The disk is full: puts are refused, and room was looked for in the only segment, where something is pinned. */
static void fill(struct store_session *ss)
{
	enum store_put_result r;
	struct store_key k = pinned_key();
	struct ds_err err;
	size_t wrong = 0;

	for (uint64_t i = 0; i < ITEMS; i++)
		wrong += put_n(ss, i, SIZE, NULL, &r, &err) != 0;
	tap_ok(!wrong && !store_pin(ss, &k, 1, true, &err), "items are there, one is pinned");
	full = true;
	tap_is_int(put_n(ss, 100, SIZE, NULL, &r, &err), DS_TEMP, "a put onto a full disk is refused");
	full = false;
}

/* The fault: those before the pinned one were no longer known, so not deleted either, but still in the file. */
static void test_deleted(void)
{
	const char *path = store_path("pinned");
	struct store_options o = { .segment = 1 << 20 };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	struct put_how how = { .replace = true, .version = 7 };
	enum store_put_result r;
	struct ds_err err;
	size_t known = 0, back = 0;

	fill(ss);
	for (uint64_t i = 0; i < ITEMS; i++)
		known += get_n(ss, i, SIZE, 0) == GET_RIGHT;
	tap_is_int((long long)known, ITEMS, "all of them are there as long as their file is");
	tap_is_int((long long)stat_of(ss).evicted, 0, "none counts as evicted");
	for (uint64_t i = 0; i < 2; i++) {
		struct store_key k = key_of(i);
		bool was;

		tap_ok(!store_del(ss, &k, &was, &err) && was, "item %d is deleted", (int)i);
	}
	tap_ok(!put_n(ss, 2, SIZE, &how, &r, &err), "another is replaced");
	store_end(ss);
	store_close(s);
	s = store_at(path, &o);
	ss = session_of(s);
	for (uint64_t i = 0; i < 2; i++)
		back += has_n(ss, i);
	tap_is_int((long long)back, 0, "after a restart, too, what was deleted is not there");
	tap_is_int(get_n(ss, 2, SIZE, 7), GET_RIGHT, "and what was replaced is the new one");
	store_end(ss);
	store_close(s);
	store_rm(path);
}

int main(void)
{
	test_deleted();
	return tap_done();
}
