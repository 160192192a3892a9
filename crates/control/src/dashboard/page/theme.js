// Light or dark: the system's, until one is chosen. Runs before the first paint, so that a chosen
// theme does not flash the other one. Toggled by the event `theme-toggle` of the document; says
// `theme-change` after a change.
{
  const KEY = 'throng.theme';
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const known = name => (name === 'dark' || name === 'light' ? name : undefined);
  const system = () => (dark.matches ? 'dark' : 'light');
  let chosen;
  try {
    chosen = known(localStorage.getItem(KEY));
  } catch {
    // Without storage a choice lasts as long as the page.
  }

  const apply = () => {
    document.documentElement.dataset.theme = chosen ?? system();
    document.dispatchEvent(new Event('theme-change'));
  };

  document.addEventListener('theme-toggle', () => {
    const next = (chosen ?? system()) === 'dark' ? 'light' : 'dark';
    // What the system says anyway needs no memory.
    chosen = next === system() ? undefined : next;
    try {
      if (chosen) localStorage.setItem(KEY, chosen);
      else localStorage.removeItem(KEY);
    } catch {
      // See above.
    }
    apply();
  });
  dark.addEventListener('change', apply);
  apply();
}
