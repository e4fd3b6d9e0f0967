/* Another process holds the lock of the directory, and is stopped: nobody waits for ever. */
#include <errno.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/time.h"
#include "tests/unit/stores.h"

#define SECOND ((int64_t)1000000000)

static int hold_lock(const char *path, int how)
{
	char file[600];
	int fd;

	snprintf(file, sizeof file, "%s/lock", path);
	fd = open(file, O_RDWR | O_CLOEXEC);
	if (fd < 0 || flock(fd, how))
		tap_bail("cannot lock %s", file);
	return fd;
}

static bool about(int64_t since, double least, double most)
{
	double took = (double)(time_mono_ns() - since) / 1e9;

	if (took < least || took > most)
		tap_diag("it took %.2f s", took);
	return took >= least && took <= most;
}

static void held(struct store *s, struct store_session *ss, const char *path)
{
	struct store_key k = key_of(1);
	enum store_put_result r;
	struct ds_err err = { 0 };
	bool was;
	int64_t t;
	int fd = hold_lock(path, LOCK_EX | LOCK_NB);

	t = time_mono_ns();
	store_deadline(ss, t + SECOND / 2);
	tap_ok(store_del(ss, &k, &was, &err) == DS_TEMP && strstr(err.text, "another process holds the lock") &&
		about(t, 0.4, 2), "a deletion gives up at its deadline");
	t = time_mono_ns();
	store_deadline(ss, t + SECOND / 2);
	tap_ok(put_n(ss, 2, 100000, NULL, &r, &err) == DS_TEMP && about(t, 0.4, 2),
		"so does a put that needs a new segment");
	store_deadline(ss, 0);
	tap_ok(has_n(ss, 1) && get_n(ss, 1, 1000, 0) == GET_RIGHT, "what only reads is not held up");
	t = time_mono_ns();
	tap_ok(store_del(ss, &k, &was, &err) == DS_TEMP && about(t, 4, 8), "without a deadline: some seconds");
	t = time_mono_ns();
	tap_ok(dir_gc(path, &s->o, NULL, NULL, &(struct dir_report){ 0 }, &err) == DS_TEMP && about(t, 8, 14),
		"opening gives up, too");
	close(fd);
	tap_ok(!store_del(ss, &k, &was, &err) && was, "and when it is free, it is deleted");
}

/* A child takes the lock for a moment again and again. */
static void busy(struct store_session *ss, const char *path)
{
	enum store_put_result r;
	struct ds_err err;
	int n = 0;
	pid_t child = fork();

	if (!child) {
		for (int i = 0; i < 40; i++) {
			close(hold_lock(path, LOCK_EX));
			usleep(1000);
		}
		_exit(0);
	}
	for (uint64_t i = 10; i < 20; i++)
		n += !put_n(ss, i, 70000, NULL, &r, &err);
	tap_is_int(n, 10, "a lock that others hold for moments is waited for");
	waitpid(child, NULL, 0);
}

int main(void)
{
	struct store_options o = { .capacity = 1 << 20, .segment = 64 << 10 };
	const char *path = store_path("waits");
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	enum store_put_result r;
	struct ds_err err;

	put_n(ss, 1, 1000, NULL, &r, &err);
	held(s, ss, path);
	busy(ss, path);
	store_end(ss);
	store_close(s);
	store_rm(path);
	return tap_done();
}
