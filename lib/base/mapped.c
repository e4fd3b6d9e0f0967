#include "base/mapped.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/leftover.h"
#include "base/log.h"
#include "base/looking.h"
#include "base/mem.h"

struct mapped {
	_Atomic(struct mapped *) next;
	uintptr_t begin, end;
	char *path;
	struct stat was;
	struct log_record cut, failed; /* ready: a handler takes no memory */
};

/* Read by the handler, without the lock. */
static _Atomic(struct mapped *) first;
static _Atomic int looking;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;
static atomic_flag ending = ATOMIC_FLAG_INIT;

static const char cut_text[] = "cannot read '%s': it was cut or changed while in use; copy the whole file there and "
	"start again";
static const char failed_text[] = "cannot read '%s': its disk reports an error";

static struct mapped *find(uintptr_t p, size_t n)
{
	struct mapped *m = atomic_load(&first);

	while (m && (p >= m->end || m->begin >= p + n))
		m = atomic_load(&m->next);
	return m;
}

/* Another file of that name says nothing of ours. */
static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool written(const struct stat *a, const struct stat *b)
{
	return a->st_size != b->st_size || a->st_mtim.tv_sec != b->st_mtim.tv_sec ||
		a->st_mtim.tv_nsec != b->st_mtim.tv_nsec;
}

/* What is gone was cut off, as far as one can see, or the disk does not give it. */
static bool was_cut(const struct mapped *m)
{
	struct stat now;

	return stat(m->path, &now) || !same_file(&now, &m->was) || written(&now, &m->was);
}

static void on_bus(int sig, siginfo_t *info, void *context)
{
	struct mapped *m;
	bool cut;

	(void)context;
	looking_begin(&looking);
	/* a code of 0 or less: somebody sent it */
	m = info->si_code > 0 ? find((uintptr_t)info->si_addr, 1) : NULL;
	if (!m) {
		looking_end(&looking);
		sigaction(sig, &before, NULL);
		if (info->si_code <= 0)
			raise(sig);
		return; /* the read is tried again */
	}
	while (atomic_flag_test_and_set(&ending))
		pause(); /* another thread ends the program */
	cut = was_cut(m);
	leftover_remove();
	log_put_record(cut ? &m->cut : &m->failed);
	_exit(cut ? DS_DATA : DS_IO);
}

static void handle(void)
{
	struct sigaction sa = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO };

	sigemptyset(&sa.sa_mask);
	sigaction(SIGBUS, &sa, &before);
}

static void release(struct mapped *m)
{
	free(m->path);
	log_free_record(&m->cut);
	log_free_record(&m->failed);
	free(m);
}

int mapped_add(struct mapped **out, const void *p, size_t n, const char *path, const struct stat *st,
	struct ds_err *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct mapped *m = mem_calloc(1, sizeof *m);
	struct ds_err cut, failed;

	*out = NULL;
	err_set(&cut, DS_DATA, cut_text, path);
	err_set(&failed, DS_IO, failed_text, path);
	if (!m || !(m->path = strdup(path)) || !log_make_record(&m->cut, cut.text) ||
	    !log_make_record(&m->failed, failed.text)) {
		if (m)
			release(m);
		return err_nomem(err, sizeof *m + strlen(path), "a mapped file");
	}
	m->begin = (uintptr_t)p;
	m->end = m->begin + n;
	m->was = *st;
	pthread_once(&once, handle);
	pthread_mutex_lock(&lock);
	atomic_store(&m->next, atomic_load(&first));
	atomic_store(&first, m);
	pthread_mutex_unlock(&lock);
	*out = m;
	return 0;
}

void mapped_remove(struct mapped *m)
{
	_Atomic(struct mapped *) *at = &first;

	if (!m)
		return;
	pthread_mutex_lock(&lock);
	while (atomic_load(at) != m)
		at = &atomic_load(at)->next;
	atomic_store(at, atomic_load(&m->next));
	pthread_mutex_unlock(&lock);
	looking_wait(&looking);
	release(m);
}

int mapped_lost(const void *p, size_t n, struct ds_err *err)
{
	struct mapped *m;
	int rc = 0;

	pthread_mutex_lock(&lock);
	m = find((uintptr_t)p, n);
	if (m)
		rc = was_cut(m) ? err_set(err, DS_DATA, cut_text, m->path) : err_set(err, DS_IO, failed_text, m->path);
	pthread_mutex_unlock(&lock);
	return rc;
}

int mapped_check(struct mapped *m, bool accept, struct ds_err *err)
{
	struct stat now;

	if (stat(m->path, &now) || !same_file(&now, &m->was) || !written(&now, &m->was))
		return 0;
	if (accept && now.st_size == m->was.st_size) {
		m->was = now;
		return 0;
	}
	return err_set(err, DS_DATA, cut_text, m->path);
}
