// Sends the one-time code of the link, which is behind `#` and so was not sent with the page.
const panel = document.getElementById("login");
const message = document.getElementById("login-message");
const button = document.getElementById("login-button");
const again = document.getElementById("login-again");
const code = location.hash.slice(1);

async function signIn() {
  button.hidden = true;
  message.textContent = "Signing in…";
  history.replaceState(null, "", location.pathname);
  const reply = await fetch("/console/login", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ code }),
  }).catch(() => null);
  if (reply?.ok) {
    location.replace("/console");
    return;
  }
  const problem = await reply?.json().catch(() => null);
  const answer = reply ? `The server answered ${reply.status}` : "The server did not answer";
  message.textContent = problem ? problem.error : `${answer}; run the command again.`;
  again.hidden = false;
}

if (code && panel.dataset.asks === "yes") {
  message.textContent = "Another page led you here. Sign in only if you asked for this link yourself.";
  button.hidden = false;
  button.addEventListener("click", signIn);
} else if (code) {
  signIn();
}
