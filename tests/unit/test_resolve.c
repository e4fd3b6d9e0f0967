/* Names that take long to resolve: getaddrinfo is ours here. */
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "net/addr.h"
#include "net/resolve.h"
#include "tap.h"

static _Atomic int asked, given_back;
static struct addrinfo answer = { .ai_family = AF_INET };

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list)
{
	(void)port;
	if (hints->ai_flags & AI_NUMERICHOST)
		return EAI_NONAME;
	asked++;
	if (strcmp(host, "slow") == 0)
		poll(NULL, 0, 400);
	if (strcmp(host, "nobody") == 0)
		return EAI_SERVICE;
	*list = &answer;
	return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
	given_back += list == &answer;
}

static int within(const char *host, int64_t ms, struct addrinfo **list)
{
	*list = NULL;
	return resolve_until(host, "1", false, time_mono_ns() + ms * 1000000, list);
}

int main(void)
{
	struct addrinfo *list;
	struct ds_err err;
	struct addr a;
	int64_t began;
	int fd, late = 0;

	tap_ok(within("fast", 5000, &list) == 0 && list == &answer, "a name that is found");
	tap_is_int(within("nobody", 5000, &list), EAI_SERVICE, "one that is not");
	tap_ok(resolve_until("slow", "1", false, 0, &list) == 0 && list == &answer, "however long it takes");
	began = time_mono_ns();
	tap_is_int(within("slow", 50, &list), EAI_AGAIN, "not longer than it may take");
	tap_ok(time_mono_ns() - began < 300000000 && !list, "and it is not waited for");
	for (int i = 0; i < 100 && !given_back; i++)
		poll(NULL, 0, 20);
	tap_is_int(given_back, 1, "what comes too late is given back");
	asked = 0;
	for (int i = 0; i < 40; i++)
		late += within("slow", 1, &list) == EAI_AGAIN;
	tap_ok(late == 40 && asked <= 16, "no crowd of threads: %d", asked);
	for (int i = 0; i < 100 && given_back < 1 + asked; i++)
		poll(NULL, 0, 20);
	tap_ok(within("fast", 5000, &list) == 0, "and they end");
	began = time_mono_ns();
	tap_ok(!addr_parse("tcp:slow:1", &a, &err) &&
		addr_start_until(&a, began + 50000000, &fd, &err) == DS_UNAVAILABLE && fd < 0 &&
		time_mono_ns() - began < 300000000, "a connection to it has its deadline: %s", err.text);
	poll(NULL, 0, 500);
	return tap_done();
}
